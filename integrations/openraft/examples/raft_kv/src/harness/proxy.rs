//! Proxies between nodes, which cut a node off as a network does: nothing arrives, and nothing is
//! closed.

use std::{collections::HashMap, io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A proxy for each direction between two nodes.
#[derive(Debug)]
pub struct Proxies {
    addresses: HashMap<(u64, u64), String>,
    cut: Arc<watch::Sender<Option<u64>>>,
    _running: JoinSet<()>,
}

/// A cut, which is healed when it is dropped.
#[derive(Debug)]
pub struct Cut(Arc<watch::Sender<Option<u64>>>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

impl Proxies {
    /// Starts proxies between nodes with these addresses.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub async fn start(nodes: &[(u64, String)]) -> io::Result<Proxies> {
        let cut = Arc::new(watch::Sender::new(None));
        let (mut addresses, mut running) = (HashMap::new(), JoinSet::new());
        for (from, _) in nodes {
            for (to, address) in nodes.iter().filter(|(to, _)| to != from) {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                addresses.insert((*from, *to), listener.local_addr()?.to_string());
                let way = Way {
                    ends: [*from, *to],
                    cut: cut.subscribe(),
                };
                running.spawn(forward_all(listener, address.clone(), way));
            }
        }
        Ok(Proxies {
            addresses,
            cut,
            _running: running,
        })
    }

    /// Returns the addresses by which a node reaches the others.
    pub fn ways_of(&self, node: u64) -> impl Iterator<Item = (u64, &str)> {
        let ways = self.addresses.iter();
        ways.filter_map(move |((from, to), address)| {
            (*from == node).then_some((*to, address.as_str()))
        })
    }

    /// Cuts a node off from all others.
    #[must_use]
    pub fn cut(&self, node: u64) -> Cut {
        self.cut.send_replace(Some(node));
        Cut(self.cut.clone())
    }
}

#[derive(Clone)]
struct Way {
    ends: [u64; 2],
    cut: watch::Receiver<Option<u64>>,
}

impl Way {
    /// Waits while the node is cut off.
    async fn open(&mut self) {
        let ends = self.ends;
        let is_open = |cut: &Option<u64>| !cut.is_some_and(|node| ends.contains(&node));
        // The sender lives as long as the proxies.
        let _ = self.cut.wait_for(is_open).await;
    }
}

async fn forward_all(listener: TcpListener, to: String, way: Way) {
    let mut forwarding = JoinSet::new();
    while let Ok((from, _)) = listener.accept().await {
        let (to, mut way) = (to.clone(), way.clone());
        forwarding.spawn(async move {
            way.open().await;
            // If the target node is away, its peer sees the connection closed.
            let _ = forward(from, &to, way).await;
        });
    }
}

async fn forward(from: TcpStream, to: &str, way: Way) -> io::Result<()> {
    let to = TcpStream::connect(to).await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    tokio::select! {
        forth = pump(from_read, to_write, way.clone()) => forth,
        back = pump(to_read, from_write, way) => back,
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut way: Way,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let got = from.read(&mut bytes).await?;
        way.open().await;
        if got == 0 {
            return to.shutdown().await;
        }
        to.write_all(&bytes[..got]).await?;
    }
}
