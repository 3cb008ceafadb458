//! `ibex keygen`: a shared secret, a certificate authority for tests, and the certificates of nodes.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyIdMethod, KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::Failure;
use crate::ed25519_key::{self, Key};
use crate::options::{Folder, Keygen, KeygenOutput};
use crate::page::{Page, Tone, print_json};

/// The files that were made.
#[derive(Debug, Serialize)]
struct Made {
    files: Vec<PathBuf>,
    /// How a program uses them.
    usage: String,
}

/// Runs the subcommand.
pub(crate) fn run(options: &Keygen) -> Result<u8, Failure> {
    let (made, output) = match options {
        Keygen::Secret { file, output } => (secret(file, output)?, output),
        Keygen::Ca { folder, output } => (authority(folder, output)?, output),
        Keygen::Node {
            name,
            folder,
            output,
        } => (node(name, folder, output)?, output),
    };
    if output.json {
        print_json(&made)?;
        return Ok(0);
    }
    let mut page = Page::for_output();
    for file in &made.files {
        page.row(0, "made", 5, Tone::Good, &file.display().to_string());
    }
    page.row(0, "use", 5, Tone::Plain, &made.usage);
    page.print()?;
    Ok(0)
}

fn secret(file: &Path, output: &KeygenOutput) -> Result<Made, Failure> {
    let mut bytes = Zeroizing::new([0; 32]);
    ed25519_key::fill(&mut *bytes).map_err(Failure::said)?;
    write_for_owner(file, &*bytes, output)?;
    Ok(Made {
        usage: format!(
            "Security::shared_secret(SharedSecret::from_file(\"{}\")?) at every node; copy the file by \
             a way that nobody else reads",
            file.display()
        ),
        files: vec![file.to_owned()],
    })
}

fn authority(options: &Folder, output: &KeygenOutput) -> Result<Made, Failure> {
    let folder = &options.folder;
    fs::create_dir_all(folder)
        .map_err(|error| Failure::said(format!("{}: {error}", folder.display())))?;
    let key = Key::generate().map_err(Failure::said)?;
    let mut params = params(&authority_name(&key), options.days, &key)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params
        .self_signed(&key)
        .map_err(|error| Failure::said(error.to_string()))?;
    let files = write_both(folder, "ca", &certificate, &key, output)?;
    Ok(Made {
        files,
        usage: format!(
            "`ibex keygen node NAME --folder {}` for each node; keep ca.key away from nodes",
            folder.display()
        ),
    })
}

fn node(name: &str, options: &Folder, output: &KeygenOutput) -> Result<Made, Failure> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || ".-".contains(letter);
    let is_dns_name = name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(is_of_name)
        && name.parse::<IpAddr>().is_err();
    if !is_dns_name || name == "ca" {
        return Err(Failure::usage(format!(
            "\"{name}\" is no node's name: that is a DNS name other than \"ca\", by which peers know \
             the node, whatever address it has"
        )));
    }
    let folder = &options.folder;
    let said = |error: rcgen::Error| Failure::said(error.to_string());
    let read = |file: &str| {
        let path = folder.join(file);
        let text = fs::read_to_string(&path);
        text.map_err(|error| {
            Failure::said(format!(
                "{}: {error}; `ibex keygen ca --folder {}` makes it",
                path.display(),
                folder.display()
            ))
        })
    };
    let authority = issuer(options, &read("ca.pem")?, &read("ca.key")?)?;
    let key = Key::generate().map_err(Failure::said)?;
    let mut params = params(name, options.days, &key)?;
    let dns_name = name.try_into().map_err(said)?;
    params.subject_alt_names.push(SanType::DnsName(dns_name));
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &authority).map_err(said)?;
    let files = write_both(folder, name, &certificate, &key, output)?;
    Ok(Made {
        usage: format!(
            "Security::certificates(\"{}\", \"{}\", \"{}\")? at this node",
            files[0].display(),
            files[1].display(),
            folder.join("ca.pem").display()
        ),
        files,
    })
}

/// Returns the authority whose certificate and key these are.
fn issuer(options: &Folder, certificate: &str, key: &str) -> Result<Issuer<'static, Key>, Failure> {
    let key = Key::read(key).map_err(Failure::said)?;
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
    let certificate = certificate.map_err(|error| Failure::said(format!("ca.pem: {error}")))?;
    // The name and the key are all that certificates take over from their authority's.
    let has = |bytes: &[u8]| certificate.windows(bytes.len()).any(|part| part == bytes);
    let name = authority_name(&key);
    if !has(name.as_bytes()) || !has(&key.public) {
        return Err(Failure::said(format!(
            "{} is not the certificate of ca.key that `ibex keygen ca` made with it; \
             `ibex keygen ca --force --folder {}` makes both anew",
            options.folder.join("ca.pem").display(),
            options.folder.display()
        )));
    }
    Ok(Issuer::new(params(&name, options.days, &key)?, key))
}

fn params(name: &str, days: u32, key: &Key) -> Result<CertificateParams, Failure> {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    // Positive and not longer than 20 bytes: RFC 5280, section 4.1.2.2.
    let mut serial = [0; 16];
    ed25519_key::fill(&mut serial).map_err(Failure::said)?;
    serial[0] = serial[0] & 0x7f | 1;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_secs());
    // Assigned one by one: rcgen marks the struct non-exhaustive, so `..Default` is not allowed.
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.key_identifier_method = KeyIdMethod::PreSpecified(key.public[..20].to_vec());
    // The clocks of nodes may differ by as much.
    params.not_before = now - Duration::from_secs(3600);
    params.not_after = now + Duration::from_secs(86_400) * days;
    Ok(params)
}

fn write_both(
    folder: &Path,
    name: &str,
    certificate: &Certificate,
    key: &Key,
    output: &KeygenOutput,
) -> Result<Vec<PathBuf>, Failure> {
    let files = vec![
        folder.join(format!("{name}.pem")),
        folder.join(format!("{name}.key")),
    ];
    // Neither is replaced without the other.
    if let Some(present) = files.iter().find(|file| file.exists() && !output.force) {
        return Err(exists(present));
    }
    write_for_owner(&files[1], key.pem().as_bytes(), output)?;
    write_for_owner(&files[0], certificate.pem().as_bytes(), output)?;
    Ok(files)
}

/// Writes a file that only its owner can read.
fn write_for_owner(path: &Path, content: &[u8], output: &KeygenOutput) -> Result<(), Failure> {
    let said = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Failure::said(format!("{}: {error}", path.display())),
    };
    if output.force {
        // A new file has the mode that is asked for, whatever the old one had.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(said(error)),
            _ => {}
        }
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(said)?;
    file.write_all(content).map_err(said)
}

fn exists(path: &Path) -> Failure {
    Failure::said(format!(
        "{} exists and is kept; --force replaces it",
        path.display()
    ))
}

/// Returns the name of the authority that has this key in its certificate. Two authorities have two
/// names, by which nodes that trust both tell them apart.
fn authority_name(key: &Key) -> String {
    let start = key.public[..8].iter();
    let start: String = start.map(|byte| format!("{byte:02x}")).collect();
    format!("ibex authority for tests {start}")
}
