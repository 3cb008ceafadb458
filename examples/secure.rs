//! Two nodes that authenticate each other, first by certificates, then by a shared secret.
//!
//! ```sh
//! cargo run --release --example secure
//! ```
//!
//! The example makes its own certificates, for this run alone. `ibex::guide::security` has the
//! commands that make real ones.

use std::{env, error::Error, fs, process, time::Duration};

use ibex::{Fabric, Node, NodeBuilder, Policy, Raw, Security, SharedSecret};
use ibex_harness::authority::{Authority, NodeFiles, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::temp_dir().join(format!("ibex-example-secure-{}", process::id()));
    let authority = Authority::new("example authority", &folder)?;
    let issue = |file, uri| authority.issue(&Request::new(file, &[uri]));
    let a = issue("a", "spiffe://example/storage/a")?;
    let b = issue("b", "spiffe://example/storage/b")?;
    let stranger = issue("stranger", "spiffe://example/billing/c")?;

    println!("with certificates");
    let storage = |files: &NodeFiles| -> Result<Security, Box<dyn Error>> {
        let security = Security::certificates(&files.chain, &files.key, &files.authorities)?;
        Ok(security.authorize(|peer| {
            let uri = peer.uri();
            uri.is_some_and(|uri| uri.starts_with("spiffe://example/storage/"))
        }))
    };
    greet(storage(&a)?, storage(&b)?)?;

    // The stranger's certificate is valid, but its name is not on the list of `a`.
    let listener = over_tcp().listen("127.0.0.1:0").security(storage(&a)?);
    let listener = listener.build()?;
    let outsider = over_tcp().security(storage(&stranger)?).build()?;
    let address = listener.local_addr().ok_or("it listens")?;
    match outsider.connect(address) {
        Err(refused) => println!("  the stranger hears: {refused}"),
        Ok(peer) => return Err(format!("{peer} was let in").into()),
    }

    println!("with a shared secret");
    let path = folder.join("cluster.key");
    // `openssl rand -out cluster.key 32` makes such a file.
    let mut random = [0; 32];
    getrandom(&mut random)?;
    fs::write(&path, random)?;
    let member = || SharedSecret::from_file(&path).map(Security::shared_secret);
    greet(member()?, member()?)?;

    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Requires TCP, the fabric between hosts; on one host ibex would choose shared memory.
fn over_tcp() -> NodeBuilder {
    Node::builder().fabric(Fabric::Tcp, Policy::Require)
}

/// Sends one message from a node with the settings `ours` to a node with `theirs`.
fn greet(ours: Security, theirs: Security) -> Result<(), Box<dyn Error>> {
    let acceptor = over_tcp().listen("127.0.0.1:0").security(theirs).build()?;
    let dialer = over_tcp().security(ours).build()?;
    let address = acceptor.local_addr().ok_or("it listens")?;
    let there = dialer.connect(address)?;
    let here = acceptor.accept()?;
    let mut sender = there.channel("greeting").codec::<Raw>().sender::<[u8]>()?;
    let mut receiver = here.channel("greeting").codec::<Raw>().receiver::<[u8]>()?;
    sender.send(&b"hello"[..])?;
    let message = receiver.recv()?;
    let name = here.authenticated_as().ok_or("it is authenticated")?;
    println!(
        "  {name} says {} over {}, encrypted: {}",
        String::from_utf8_lossy(&message),
        here.fabric(),
        here.is_encrypted(),
    );
    drop((message, sender, receiver));
    let _ = dialer.close(Duration::from_secs(10));
    Ok(())
}

fn getrandom(bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::Read;

    fs::File::open("/dev/urandom")?.read_exact(bytes)
}
