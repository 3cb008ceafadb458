//! A guest in the cache: a root, a kernel and an initrd of known versions.
//!
//! The cache is `$IBEX_VM_CACHE`, else `ibex-vm` in `$XDG_CACHE_HOME` or `~/.cache`, so that all
//! clones share it. It contains `RELEASE/KERNEL+rdma-core-VERSION-HASH`, where the hash is of the
//! list of packages, each with
//!
//! 1. `root/`, these packages, unpacked,
//! 2. `about`, the versions and the list,
//! 3. `initrd-HASH`, by the content of the files put into it.
//!
//! A new guest is made in `new.*`, and renamed when it is complete. A guest with a name is
//! therefore complete and never changes, and no process waits for another.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::failure::Failure;
use crate::vm::initrd::Initrd;
use crate::vm::packages::{self, Archive, Packages};
use crate::vm::release::{Release, entries};
use crate::workspace;

/// A guest that can be booted.
#[derive(Debug)]
pub(crate) struct Guest {
    release: Release,
    folder: PathBuf,
    kernel: String,
    /// The version of rdma-core in the root; if the root is this machine's own, the guest reports
    /// it.
    rdma_core: Option<String>,
}

impl Guest {
    /// Returns the guest of this release, with packages that another list adds: the newest in the
    /// cache, or a new one.
    pub(crate) fn of(release: &Release, more: Option<&str>, update: bool) -> Result<Self, Failure> {
        let shelf = cache()?.join(release.name());
        packages::make_folder(&shelf)?;
        let recipe = recipe(release, more)?;
        let cached = if update {
            None
        } else {
            Self::cached(release, &shelf, &recipe)
        };
        match cached {
            Some(guest) => Ok(guest),
            None => Self::make(release, &shelf, &recipe),
        }
    }

    /// Returns the folder that becomes the guest's root.
    pub(crate) fn root(&self) -> PathBuf {
        match self.release {
            Release::Debian(_) => self.folder.join("root"),
            Release::Host => PathBuf::from("/"),
        }
    }

    /// Returns whether the guest's root is this machine's own.
    pub(crate) fn has_our_root(&self) -> bool {
        self.release == Release::Host
    }

    /// Returns the folder of the kernel's modules, by version.
    pub(crate) fn modules(&self) -> PathBuf {
        self.folder.join("root/lib/modules")
    }

    /// Returns the path of the kernel's image.
    pub(crate) fn kernel_image(&self) -> Result<PathBuf, Failure> {
        let beside_modules = self.modules().join(&self.kernel).join("vmlinuz");
        let in_boot = self
            .folder
            .join(format!("root/boot/vmlinuz-{}", self.kernel));
        let image = [beside_modules, in_boot]
            .into_iter()
            .find(|image| image.exists());
        image.ok_or_else(|| {
            let folder = self.folder.display();
            Failure::new(format!("{folder}/root has no image of its kernel"))
        })
    }

    /// Returns the initrd, which is made now if the cache has none like it.
    pub(crate) fn initrd(&self) -> Result<PathBuf, Failure> {
        let init = workspace::root().join("vm/init");
        let init = fs::read(&init)
            .map_err(|error| Failure::new(format!("{}: {error}", init.display())))?;
        let path = self.folder.join(format!("initrd-{:016x}", hash(&init)));
        if !path.exists() {
            let modules = self.modules().join(&self.kernel);
            let busybox = self.folder.join("root/bin/busybox");
            let initrd = Initrd::build(&modules, &busybox, &init)?;
            let new = self.folder.join(new_name());
            let unwritable = |error| Failure::new(format!("{}: {error}", path.display()));
            fs::write(&new, initrd).map_err(unwritable)?;
            fs::rename(&new, &path).map_err(unwritable)?;
        }
        Ok(path)
    }

    /// Describes the guest.
    pub(crate) fn describe(&self) -> String {
        let rdma_core = self.rdma_core.as_ref();
        let rdma_core = rdma_core.map_or(String::new(), |version| format!(", rdma-core {version}"));
        format!("{}, Linux {}{rdma_core}", self.release, self.kernel)
    }

    /// Returns the newest guest on the shelf that was made by this recipe.
    fn cached(release: &Release, shelf: &Path, recipe: &str) -> Option<Self> {
        let entries = fs::read_dir(shelf).ok()?.flatten();
        let guests = entries.filter_map(|entry| {
            let about = fs::read_to_string(entry.path().join("about")).ok()?;
            let about = About::parse(&about).filter(|about| about.recipe == recipe)?;
            let made = entry
                .metadata()
                .and_then(|metadata| metadata.modified())
                .ok()?;
            Some((made, Self::at(release, entry.path(), about)))
        });
        let newest = guests.max_by_key(|(made, _)| *made);
        newest.map(|(_, guest)| guest)
    }

    fn at(release: &Release, folder: PathBuf, about: About) -> Self {
        Self {
            release: release.clone(),
            folder,
            kernel: about.kernel,
            rdma_core: about.rdma_core,
        }
    }

    fn make(release: &Release, shelf: &Path, recipe: &str) -> Result<Self, Failure> {
        eprintln!(
            "vm: fetching the packages of {release} into {}",
            shelf.display()
        );
        remove_abandoned(shelf);
        let new = shelf.join(new_name());
        let made = Self::make_in(release, &new, recipe).and_then(|about| {
            let rdma_core = about.rdma_core.as_ref();
            let rdma_core =
                rdma_core.map_or(String::new(), |version| format!("+rdma-core-{version}"));
            let made_of = hash(recipe.as_bytes()) as u32;
            let name = format!("{}{rdma_core}-{made_of:08x}", about.kernel);
            let folder = shelf.join(name);
            place(&new, &folder)?;
            Ok(Self::at(release, folder, about))
        });
        // The rest of an incomplete guest is useless.
        let _ = fs::remove_dir_all(&new);
        made
    }

    fn make_in(release: &Release, new: &Path, recipe: &str) -> Result<About, Failure> {
        let apt = new.join("apt");
        let root = new.join("root");
        let packages = Packages::of(release, &apt)?;
        if let Release::Debian(_) = release {
            runs_our_programs(&packages)?;
        }
        let (own, foreign): (Vec<_>, Vec<_>) =
            entries(recipe).partition(|entry| !entry.contains(FROM));
        let mut archives = packages.download(own)?;
        for entry in foreign {
            let (older, package) = entry.split_once(FROM).unwrap_or_default();
            let folder = new.join(format!("apt-{older}"));
            let older = Packages::of(&Release::Debian(older.to_string()), &folder)?;
            archives.push(older.download_alone(package)?);
        }
        packages::make_folder(&root)?;
        archives
            .iter()
            .try_for_each(|archive| archive.unpack(&root))?;
        configure(&root)?;
        let kernel = kernel_in(&root)?;
        let mut depmod = Command::new("depmod");
        packages::output(depmod.arg("-b").arg(&root).arg(&kernel))?;
        remove_lists(new)?;
        let is_rdma_core = |archive: &&Archive| archive.name == "rdma-core";
        let rdma_core = archives.iter().find(is_rdma_core);
        let about = About {
            kernel,
            rdma_core: rdma_core.map(|archive| archive.version.clone()),
            recipe: recipe.to_string(),
        };
        packages::write(&new.join("about"), &about.to_text())?;
        Ok(about)
    }
}

/// The sources of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct About {
    kernel: String,
    rdma_core: Option<String>,
    /// The requested packages.
    recipe: String,
}

impl About {
    fn parse(text: &str) -> Option<Self> {
        let (versions, recipe) = text.split_once("\n\n")?;
        let version = |name: &str| {
            let mut lines = versions.lines();
            let version = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            Some(version.to_string())
        };
        Some(Self {
            kernel: version("kernel")?,
            rdma_core: version("rdma-core"),
            recipe: recipe.to_string(),
        })
    }

    fn to_text(&self) -> String {
        let rdma_core = self.rdma_core.as_ref();
        let rdma_core = rdma_core.map_or(String::new(), |version| format!("\nrdma-core {version}"));
        format!("kernel {}{rdma_core}\n\n{}", self.kernel, self.recipe)
    }
}

/// Returns the packages of a guest, one per line: those of `vm/packages` and of another list.
fn recipe(release: &Release, more: Option<&str>) -> Result<String, Failure> {
    let lines = |packages: &mut dyn Iterator<Item = &str>| -> String {
        packages.map(|package| format!("{package}\n")).collect()
    };
    match release {
        Release::Debian(_) => {
            let mut recipe = String::new();
            for list in ["vm/packages"].into_iter().chain(more) {
                let path = workspace::root().join(list);
                let text = fs::read_to_string(&path)
                    .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
                recipe += &lines(&mut entries(&text));
            }
            Ok(recipe)
        }
        // The root exists already. Ubuntu's kernel package has another name.
        Release::Host => {
            let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
            let is_ubuntu = os_release.lines().any(|line| line == "ID=ubuntu");
            let kernel = if is_ubuntu {
                "linux-image-generic"
            } else {
                "linux-image-amd64"
            };
            Ok(lines(
                &mut [kernel, "base-files", "busybox-static"].into_iter(),
            ))
        }
    }
}

/// Does what the packages' own scripts would have done, as far as it is needed.
fn configure(root: &Path) -> Result<(), Failure> {
    let unusable = |error| Failure::new(format!("{}: {error}", root.display()));
    for name in ["passwd", "group"] {
        let master = root.join(format!("usr/share/base-passwd/{name}.master"));
        if master.exists() {
            fs::copy(master, root.join("etc").join(name)).map_err(unusable)?;
        }
    }
    packages::write(
        &root.join("etc/hosts"),
        "127.0.0.1 localhost\n::1 localhost\n",
    )?;
    let awk = root.join("usr/bin/awk");
    if root.join("usr/bin/mawk").exists() && !awk.exists() {
        std::os::unix::fs::symlink("mawk", awk).map_err(unusable)?;
    }
    Ok(())
}

/// Returns the version of the only kernel in a root.
fn kernel_in(root: &Path) -> Result<String, Failure> {
    let folder = root.join("lib/modules");
    let names = fs::read_dir(&folder).into_iter().flatten().flatten();
    let name = names.map(|entry| entry.file_name()).next();
    let name = name.and_then(|name| name.into_string().ok());
    name.ok_or_else(|| Failure::new(format!("{}: there is no kernel", folder.display())))
}

/// Checks that programs built here can run there, which needs the same C library or a newer one.
fn runs_our_programs(packages: &Packages) -> Result<(), Failure> {
    let theirs = packages.version_of("libc6")?;
    let ours = packages::output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    if release_number(&theirs) < release_number(&ours) {
        let ours = ours.trim();
        return Err(Failure::new(format!(
            "its C library, {theirs}, is too old for what is built here with {ours}"
        )));
    }
    Ok(())
}

/// Returns the first two numbers of a version, such as `2.43-7` or `glibc 2.36`.
fn release_number(version: &str) -> Option<(u32, u32)> {
    let digits = version.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let mut numbers = digits.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Gives a complete guest its name. If another process was faster, its guest is as good.
fn place(new: &Path, folder: &Path) -> Result<(), Failure> {
    match fs::rename(new, folder) {
        Err(error) if !folder.exists() => {
            Err(Failure::new(format!("{}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

/// Removes apt's lists and the archives that it fetched.
fn remove_lists(new: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::new(format!("{}: {error}", new.display()));
    for entry in fs::read_dir(new).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_string_lossy().starts_with("apt") {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns a unique name, even if several machines share the cache.
fn new_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos();
    format!("{NEW}{}-{nanos}", process::id())
}

/// Removes unfinished guests of processes that died.
fn remove_abandoned(shelf: &Path) {
    for entry in fs::read_dir(shelf).into_iter().flatten().flatten() {
        let is_new = entry.file_name().to_string_lossy().starts_with(NEW);
        let made = entry.metadata().and_then(|metadata| metadata.modified());
        let age = made.ok().and_then(|made| made.elapsed().ok());
        if is_new && age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the folder of the cache, described at the head of this file.
fn cache() -> Result<PathBuf, Failure> {
    let folder = |name| {
        env::var_os(name)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    let users = || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    folder("IBEX_VM_CACHE")
        .or_else(|| Some(users()?.join("ibex-vm")))
        .ok_or_else(|| Failure::new("there is no HOME; say where to keep guests by IBEX_VM_CACHE"))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

const NEW: &str = "new.";

/// Separates an older release from the package that is taken from it.
const FROM: &str = ": ";

/// A time far longer than making a guest, which takes a minute or two.
const ABANDONED: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_of_a_guest_is_read_as_it_was_written() {
        for rdma_core in [Some("65.0-1.1".to_string()), None] {
            let about = About {
                kernel: "7.2.12+deb14-amd64".into(),
                rdma_core,
                recipe: "bash\nrdma-core\n".into(),
            };
            assert_eq!(About::parse(&about.to_text()), Some(about));
        }
        assert_eq!(About::parse("kernel 7.2"), None);
        assert_eq!(About::parse("rdma-core 65\n\nbash\n"), None);
    }

    #[test]
    fn versions_of_the_c_library_compare_as_numbers() {
        assert_eq!(release_number("2.43-7"), Some((2, 43)));
        assert_eq!(release_number("glibc 2.36\n"), Some((2, 36)));
        assert!(release_number("2.9-1") < release_number("glibc 2.36"));
        assert_eq!(release_number("unknown"), None);
    }

    #[test]
    fn the_recipe_names_the_kernel_and_the_library() {
        let debian = Release::Debian("forky".into());
        let tests = recipe(&debian, None).unwrap();
        for package in [
            "linux-image-amd64",
            "busybox-static",
            "rdma-core",
            "perftest",
        ] {
            assert!(tests.lines().any(|line| line == package), "{package}");
        }
        let bench = recipe(&debian, Some("vm/packages-bench")).unwrap();
        let more = bench.strip_prefix(&tests).unwrap();
        assert!(more.lines().any(|line| line == "libfabric-bin"), "{more}");
        assert!(recipe(&debian, Some("vm/no-such-list")).is_err());
    }
}
