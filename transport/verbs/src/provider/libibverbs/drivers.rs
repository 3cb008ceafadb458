//! The drivers of libibverbs, a library for each kind of device.
//!
//! libibverbs loads them when it first lists a device that it has none for, and never again
//! (`ibverbs_get_device_list` in rdma-core's libibverbs/init.c). A process that may open no more
//! files at that moment would be without RDMA for as long as it lives. So missing drivers are
//! loaded here: a driver registers itself when it is loaded, and the next list of devices has its
//! devices.
//!
//! The search for drivers follows libibverbs/dynamic_driver.c: the files in [`CONFIGURATION`] name
//! the drivers, which lie beside libibverbs, in a directory of its name.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;

/// Returns whether the kernel has more devices than `listed`.
pub(super) fn may_be_missing(listed: usize) -> bool {
    // The directory also has a file with the version of the interface.
    let devices = names(Path::new("/sys/class/infiniband_verbs")).map(|names| {
        let is_device = |name: &&String| name.starts_with("uverbs");
        names.iter().filter(is_device).count()
    });
    devices.is_ok_and(|devices| devices > listed)
}

/// Loads the missing drivers. Returns whether there was one. No list may be taken during the call.
///
/// # Errors
/// There are no descriptors for it.
pub(super) fn load_missing() -> Result<bool, Errno> {
    let mut has_loaded = false;
    if let Some(directory) = directory() {
        for file in configured(Path::new(CONFIGURATION), &directory)? {
            // The linker would report a lack of descriptors only as text.
            unless_short(fs::File::open(&file).map(drop))?;
            has_loaded |= load(&file);
        }
    }
    Ok(has_loaded)
}

/// The libraries that the files in `configuration` name, of which there may be one for each version
/// of libibverbs. Libraries without a path lie in `directory`.
fn configured(configuration: &Path, directory: &Path) -> Result<Vec<PathBuf>, Errno> {
    let mut libraries = Vec::new();
    for file in unless_short(names(configuration))? {
        let text = unless_short(fs::read_to_string(configuration.join(file)))?;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            if let (Some("driver"), Some(name)) = (words.next(), words.next()) {
                libraries.extend(libraries_of(name, directory)?);
            }
        }
    }
    Ok(libraries)
}

fn libraries_of(driver: &str, directory: &Path) -> Result<Vec<PathBuf>, Errno> {
    let path = match driver.starts_with('/') {
        true => PathBuf::from(driver),
        false => directory.join(format!("lib{driver}")),
    };
    let (Some(directory), Some(start)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
    else {
        return Ok(Vec::new());
    };
    let is_one = |name: &String| {
        let version = name.strip_prefix(start);
        version.is_some_and(|version| version.starts_with("-rdmav") && version.ends_with(".so"))
    };
    let libraries = unless_short(names(directory))?.into_iter().filter(is_one);
    Ok(libraries.map(|name| directory.join(name)).collect())
}

/// Loads a driver. Returns whether it did: not if the driver is loaded already, or serves another
/// libibverbs.
fn load(file: &Path) -> bool {
    let Ok(name) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: a name that ends in a zero. Loading the library runs the same code as when libibverbs
    // loads it, since the machine's configuration names it. No code of this crate takes a list
    // during the call; other code in this process that does so sees the driver or does not.
    unsafe {
        let there = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if !there.is_null() {
            libc::dlclose(there);
            return false;
        }
        // The library is never closed, because libibverbs keeps what the driver registers.
        !libc::dlopen(name.as_ptr(), libc::RTLD_NOW).is_null()
    }
}

/// Returns the directory of the drivers of this process's libibverbs.
fn directory() -> Option<PathBuf> {
    let library = loaded_from(c"libibverbs.so.1", c"ibv_get_device_list")?;
    Some(library.parent()?.join("libibverbs"))
}

/// The file of a library that is loaded and has `symbol`.
fn loaded_from(library: &CStr, symbol: &CStr) -> Option<PathBuf> {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: names that end in a zero; `found` is read only if it was written. The linker owns the
    // name in it and keeps the name while the library is loaded. The library stays loaded, because
    // it is never closed.
    unsafe {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        let handle: *mut c_void = libc::dlopen(library.as_ptr(), flags);
        if handle.is_null() {
            return None;
        }
        let address = libc::dlsym(handle, symbol.as_ptr());
        libc::dlclose(handle);
        if address.is_null() || libc::dladdr(address, found.as_mut_ptr()) == 0 {
            return None;
        }
        let name = CStr::from_ptr(found.assume_init().dli_fname);
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.collect())
}

/// Turns a missing or unreadable file into a default; a file that cannot be opened because
/// descriptors are lacking is an error.
fn unless_short<T: Default>(read: io::Result<T>) -> Result<T, Errno> {
    read.or_else(|error| match Errno::from_io_error(&error) {
        Some(short @ (Errno::MFILE | Errno::NFILE)) => Err(short),
        _ => Ok(T::default()),
    })
}

/// `IBV_CONFIG_DIR` of every distribution.
const CONFIGURATION: &str = "/etc/libibverbs.d";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_found_as_libibverbs_finds_them() {
        let root = std::env::temp_dir().join(format!("ibex-drivers-{}", std::process::id()));
        let (configuration, beside, elsewhere) =
            (root.join("etc"), root.join("libibverbs"), root.join("opt"));
        for directory in [&configuration, &beside, &elsewhere] {
            fs::create_dir_all(directory).expect("a directory");
        }
        let write = |path: PathBuf, text: &str| fs::write(path, text).expect("a file");
        write(configuration.join("rxe.driver"), "# soft\n\tdriver rxe\n");
        let own = elsewhere.join("libown");
        let text = format!("driver {}\ndriver absent\nnonsense\n", own.display());
        write(configuration.join("own.driver"), &text);
        fs::create_dir(configuration.join("d")).expect("a directory");
        for name in ["librxe-rdmav34.so", "librxe2-rdmav34.so", "librxe.so"] {
            write(beside.join(name), "");
        }
        write(elsewhere.join("libown-rdmav57.so"), "");

        let mut found = configured(&configuration, &beside).expect("descriptors");
        found.sort();
        let expected = [
            beside.join("librxe-rdmav34.so"),
            elsewhere.join("libown-rdmav57.so"),
        ];
        assert_eq!(found, expected);
        assert_eq!(configured(&root.join("none"), &beside), Ok(Vec::new()));
        // None of these files is a library.
        assert!(found.iter().all(|file| !load(file)));
        fs::remove_dir_all(root).expect("it is there");
    }

    #[test]
    fn a_library_that_is_loaded_is_found() {
        let file = loaded_from(c"libc.so.6", c"getpid").expect("the C library");
        assert!(file.is_file(), "{file:?}");
        assert_eq!(loaded_from(c"no such library", c"getpid"), None);
        // The driver is loaded already.
        assert!(!load(&file));
    }
}
