//! `IBEX_*` variables as a node reads them, from the process or from a given environment.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    process::Command,
};

use ibex::{Fabric, ListenErrorKind, Node, Policy};
use ibex_harness::process::copy_this_program;

#[test]
fn the_process_has_the_last_word() {
    let said = of_child(&[
        ("IBEX_FABRICS", "tcp"),
        ("IBEX_COLOUR", "green"),
        ("IBEX_TEST_DEVICE", "none"),
        ("IBEX_MUTANT", "none"),
    ]);
    assert!(
        said.contains("over tcp: tcp: required by the connecting node"),
        "{said}"
    );
    assert!(said.contains("IBEX_FABRICS=tcp"), "{said}");
    let warning = "IBEX_COLOUR is no variable of ibex and has no effect; there are IBEX_FABRICS";
    assert!(said.contains(warning), "{said}");
    assert_eq!(said.matches("has no effect").count(), 1, "{said}");
}

#[test]
fn without_variables_nothing_is_overridden() {
    let said = of_child(&[]);
    assert!(
        said.contains("over shm: shm: preferred by the connecting node"),
        "{said}"
    );
    assert!(!said.contains("IBEX_"), "{said}");
}

#[test]
fn a_misspelt_name_is_an_error_of_the_builder() {
    let said = of_child(&[("IBEX_FABRIC", "tcp")]);
    assert!(said.contains("is IBEX_FABRICS meant?"), "{said}");
    assert!(!said.contains("over "), "no node was made: {said}");
}

/// The user who starts a setuid program sets its variables, and has fewer rights than the program.
#[test]
fn a_setuid_program_ignores_the_variables_of_its_user() {
    let folder = env::temp_dir().join(format!("ibex-setuid-{}", std::process::id()));
    fs::create_dir(&folder).expect("a folder");
    let program = folder.join("program");
    copy_this_program(&program).expect("a copy");
    const NOBODY: u32 = 65534;
    let set = std::os::unix::fs::chown(&program, Some(NOBODY), None)
        .and_then(|()| fs::set_permissions(&program, Permissions::from_mode(0o4755)));
    let said = set.map(|()| run(Command::new(&program), &[("IBEX_FABRICS", "tcp")]));
    fs::remove_dir_all(&folder).expect("it is removed");
    match said {
        Ok(said) if said.contains("runs with the rights of its user") => {
            println!("not tested: the file system or this container ignores setuid");
        }
        Ok(said) => assert!(said.contains("over shm: shm: preferred"), "{said}"),
        Err(error) => println!("not tested: only root makes a program of another user: {error}"),
    }
}

#[test]
fn a_value_that_cannot_be_used_is_an_error_of_the_builder() {
    let said = of_child(&[("IBEX_FABRICS", "shn")]);
    let error = "IBEX_FABRICS is \"shn\" in the environment; it may be fabrics (shm, tcp, verbs)";
    assert!(said.contains(error), "{said}");
}

/// Runs in a process of its own.
#[test]
#[ignore = "the other tests run it, with variables"]
fn a_node_in_this_environment() {
    let (uid, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    if uid == effective {
        println!("runs with the rights of its user");
    }
    let builder = Node::builder().fabric(Fabric::Shm, Policy::Prefer);
    let node = match builder.build() {
        Ok(node) => node,
        Err(error) => return println!("{error}"),
    };
    for (variable, value) in node.environment() {
        println!("{variable}={value}");
    }
    for warning in node.environment_warnings() {
        println!("{warning}");
    }
    let listener = Node::builder()
        .environment([("", ""); 0])
        .listen("127.0.0.1:0");
    let listener = listener.build().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let peer = node.connect(address).expect("a session");
    println!("over {}: {}", peer.fabric(), peer.fabric_reason());
}

#[test]
fn variables_may_come_from_elsewhere() {
    let odd = [("IBEX_RDMA_PORT", "0")];
    let error = Node::builder()
        .environment(odd)
        .build()
        .expect_err("no port");
    assert!(error.kind() == ListenErrorKind::Variable, "{error}");
    assert_eq!(
        error.to_string(),
        "IBEX_RDMA_PORT is \"0\" in the environment; it may be 1 to 255"
    );
    let list = [("IBEX_FABRICS", "verbs,tcp")];
    let node = Node::builder().environment(list).build().expect("a node");
    let warnings = node.environment_warnings();
    if cfg!(feature = "verbs") {
        assert!(warnings.is_empty(), "{warnings:?}");
    } else {
        let [warning] = warnings else {
            panic!("verbs is not there: {warnings:?}");
        };
        assert!(warning.contains("verbs"), "{warning}");
    }
}

/// A fabric that a variable requires and the build lacks is an error of the builder. A fabric that
/// the program requires yields to the variable's.
#[test]
#[cfg(not(feature = "verbs"))]
fn the_site_overrides_what_the_program_requires() {
    let verbs = [("IBEX_FABRICS", "verbs")];
    let error = Node::builder()
        .environment(verbs)
        .build()
        .expect_err("not there");
    assert!(error.kind() == ListenErrorKind::NotCompiledIn, "{error}");
    assert_eq!(
        error.to_string(),
        "verbs is required by IBEX_FABRICS=\"verbs\" in the environment, and verbs is not compiled \
         in: enable the feature `verbs` of the crate ibex, or do not require it"
    );
    let tcp = [("IBEX_FABRICS", "tcp")];
    let required = Node::builder().fabric(Fabric::Verbs, Policy::Require);
    required.environment(tcp).build().expect("tcp will do");
}

/// Returns the output of [`a_node_in_this_environment`] with these variables.
fn of_child(variables: &[(&str, &str)]) -> String {
    run(
        Command::new(env::current_exe().expect("this program")),
        variables,
    )
}

fn run(mut child: Command, variables: &[(&str, &str)]) -> String {
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("IBEX_")) {
        child.env_remove(name);
    }
    let child = child.envs(variables.iter().copied());
    let child = child.args([
        "--exact",
        "a_node_in_this_environment",
        "--ignored",
        "--nocapture",
    ]);
    let output = child.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}
