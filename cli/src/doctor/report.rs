//! The report for others: findings and devices, without names of hosts and users and without
//! addresses.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Diagnosis;
use super::reach::Reached;
use crate::info;
use crate::page::Page;
use crate::root::Root;

/// Writes the report; a file that exists is replaced. Only its owner can read it.
pub(super) fn write(
    file: &Path,
    root: &Root,
    to: Option<&str>,
    diagnosis: &Diagnosis,
    reached: Option<&Reached>,
) -> io::Result<()> {
    let info = info::gather(root);
    let mut page = Page::for_file();
    page.title(&format!(
        "ibex {}, Linux {}, {}",
        info.version,
        info.kernel.as_deref().unwrap_or("unknown"),
        std::env::consts::ARCH
    ));
    info::show(&info, &mut page);
    super::show(diagnosis, &mut page);
    if let Some(reached) = reached {
        super::show_reached(reached, &Diagnosis::default(), &mut page);
    }
    let mut redaction = Redaction::new(root, to);
    let text = redaction.redact(&page.into_text());
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)?;
    file.write_all(text.as_bytes())
}

/// Replaces what tells who and where. The same thing is replaced by the same word.
struct Redaction {
    /// Names, in lower case, and their kind.
    names: HashMap<String, &'static str>,
    words: HashMap<String, String>,
    counts: HashMap<&'static str, usize>,
}

impl Redaction {
    fn new(root: &Root, to: Option<&str>) -> Self {
        let mut names = HashMap::new();
        let mut add = |name: Option<String>, kind| {
            if let Some(name) = name {
                names.insert(name.to_lowercase(), kind);
            }
        };
        let host = root.read("/proc/sys/kernel/hostname");
        let short = host.as_deref().and_then(|host| host.split('.').next());
        add(short.map(str::to_owned), "host");
        add(host, "host");
        add(root.read("/etc/hostname"), "host");
        let to = to.map(|to| to.rsplit_once(':').map_or(to, |(host, _)| host));
        add(to.map(str::to_owned), "host");
        for variable in ["USER", "LOGNAME", "SUDO_USER"] {
            add(
                std::env::var(variable).ok().filter(|name| !name.is_empty()),
                "user",
            );
        }
        for line in root.read("/etc/passwd").unwrap_or_default().lines() {
            let mut fields = line.split(':');
            let (name, user) = (fields.next(), fields.nth(1));
            // Users below this number belong to the system, and are the same everywhere.
            if user
                .and_then(|user| user.parse::<u32>().ok())
                .is_some_and(|user| (1000..60_000).contains(&user))
            {
                add(name.map(str::to_owned), "user");
            }
        }
        Self {
            names,
            words: HashMap::new(),
            counts: HashMap::new(),
        }
    }

    fn redact(&mut self, text: &str) -> String {
        let is_of_word = |letter: char| letter.is_alphanumeric() || ".:-_%".contains(letter);
        let mut redacted = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(is_of_word) {
            let (before, word) = rest.split_at(start);
            let end = word
                .find(|letter| !is_of_word(letter))
                .unwrap_or(word.len());
            let (word, after) = word.split_at(end);
            redacted.push_str(before);
            redacted.push_str(&self.word(word));
            rest = after;
        }
        redacted.push_str(rest);
        redacted
    }

    fn word(&mut self, word: &str) -> String {
        // A stop or a colon behind a word belongs to the sentence.
        let bare = word.trim_end_matches(['.', ':']);
        let end = &word[bare.len()..];
        if let Some(kind) = self.kind(word) {
            return self.replacement(kind, word);
        }
        if let Some(kind) = self.kind(bare) {
            return self.replacement(kind, bare) + end;
        }
        // A name or address with a port.
        if let Some((host, port)) = bare.rsplit_once(':')
            && let Some(kind) = self.kind(host)
        {
            return format!("{}:{port}{end}", self.replacement(kind, host));
        }
        word.to_owned()
    }

    fn kind(&self, word: &str) -> Option<&'static str> {
        if let Some(kind) = self.names.get(&word.to_lowercase()) {
            return Some(kind);
        }
        let unscoped = word.split('%').next().unwrap_or(word);
        if let Ok(ip) = unscoped.parse::<IpAddr>() {
            // These are the same everywhere.
            return (!ip.is_loopback() && !ip.is_unspecified()).then_some("address");
        }
        // GUIDs have four groups of four digits, and Ethernet addresses, which GUIDs are made of,
        // six of two.
        let groups: Vec<_> = word.split(':').collect();
        let is_hex = |length| {
            let mut groups = groups.iter();
            groups.all(|group| {
                group.len() == length && group.chars().all(|digit| digit.is_ascii_hexdigit())
            })
        };
        match groups.len() {
            4 if is_hex(4) => Some("guid"),
            6 if is_hex(2) => Some("address"),
            _ => None,
        }
    }

    fn replacement(&mut self, kind: &'static str, word: &str) -> String {
        let key = word.to_lowercase();
        if let Some(known) = self.words.get(&key) {
            return known.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let replacement = format!("<{kind}-{count}>");
        self.words.insert(key, replacement.clone());
        replacement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_replaced_and_equal_ones_stay_equal() {
        let mut redaction = Redaction {
            names: HashMap::from([
                ("db1.example".to_owned(), "host"),
                ("ann".to_owned(), "user"),
            ]),
            words: HashMap::new(),
            counts: HashMap::new(),
        };
        let text = "db1.example:7000 (192.0.2.7:7000): ann on 192.0.2.7. GID ::ffff:192.0.2.7, \
                    fe80::1%eth0, [2001:db8::5]:80; GUID 506b:4b03:00ba:1234, MAC \
                    24:3c:26:d3:86:51; 127.0.0.1, version 0.1.0, at 0000:3b:00.0: manner";
        assert_eq!(
            redaction.redact(text),
            "<host-1>:7000 (<address-1>:7000): <user-1> on <address-1>. GID <address-2>, \
             <address-3>, [<address-4>]:80; GUID <guid-1>, MAC <address-5>; 127.0.0.1, version \
             0.1.0, at 0000:3b:00.0: manner"
        );
    }
}
