//! The limit that the guide promises for warnings: five of a kind in ten seconds.

mod tests {
    use std::{fs, path::Path};

    use crate::workspace;

    /// The published crates, and those that stand beside them.
    const FOLDERS: &[&str] = &[
        "src",
        "core",
        "services",
        "transport",
        "bootstrap",
        "codec",
        "integrations",
    ];

    /// Where the limits themselves log what they admit.
    const LIMITS: &[&str] = &[
        "core/src/meeting/listener.rs",
        "transport/base/src/log_limit.rs",
        "transport/src/node/warnings.rs",
    ];

    #[test]
    fn every_warning_has_a_limit() {
        let root = workspace::root();
        let mut without = Vec::new();
        for folder in FOLDERS {
            look_through(&root.join(folder), &mut |path, text| {
                let name = path
                    .strip_prefix(root)
                    .unwrap_or(path)
                    .display()
                    .to_string();
                let code = text.split("#[cfg(test)]\nmod tests {").next();
                if code.unwrap_or_default().contains("tracing::warn!") && !LIMITS.contains(&&*name)
                {
                    without.push(name);
                }
            });
        }
        assert!(
            without.is_empty(),
            "a warning that can come again and again is logged by `warn_limited!`: {without:?}"
        );
    }

    fn look_through(folder: &Path, look: &mut impl FnMut(&Path, &str)) {
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                look_through(&path, look);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                look(
                    &path,
                    &fs::read_to_string(&path).expect("the file can be read"),
                );
            }
        }
    }
}
