//! Where the other end is: in a process of this machine, or on another host.

use ibex::{Fabric, Node, Peer};
use ibex_harness::Error;
use ibex_harness::cores::{self, Cores};
use ibex_harness::job::{Figures, Job};
use ibex_harness::limit::Limit;
use ibex_measurement::pairs;
use ibex_measurement::session::{self, FabricName, Order, Setup};

/// The other end.
pub(crate) enum Place {
    /// A process that this one starts for each measurement.
    Here {
        /// The cores of rows of one session.
        cores: Cores,
        /// The cores of rows of several sessions.
        allowed: Vec<usize>,
    },
    /// `ibex perf --listen` at this address.
    There {
        to: String,
        core: usize,
        allowed: Vec<usize>,
    },
}

impl Place {
    pub(crate) fn here(cores: Cores, allowed: &[usize]) -> Self {
        Self::Here {
            cores,
            allowed: allowed.to_vec(),
        }
    }

    /// Returns the place of a listener that takes connections.
    ///
    /// # Errors
    /// It takes none.
    pub(crate) fn there(to: &str, core: usize, allowed: &[usize]) -> Result<Self, Error> {
        match crate::session::closed(to) {
            Some(why) => Err(Error::subject(why)),
            None => Ok(Self::There {
                to: to.to_owned(),
                core,
                allowed: allowed.to_vec(),
            }),
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        matches!(self, Self::There { .. })
    }

    /// Returns the cores of a row of so many sessions.
    pub(crate) fn cores(&self, sessions: usize) -> &[usize] {
        match self {
            Self::Here { allowed, .. } | Self::There { allowed, .. } if sessions > 1 => allowed,
            Self::Here { cores, .. } => cores,
            Self::There { core, .. } => std::slice::from_ref(core),
        }
    }

    /// Measures ibex over new sessions. Returns the figures of each session, the fabric of the
    /// first, and the reason for it.
    pub(crate) fn subject(
        &self,
        setup: Setup,
        order: Order,
    ) -> Result<(Vec<Figures>, Fabric, String), Error> {
        let measured = |peers: &[Peer]| {
            let figures = match peers {
                [peer] => session::measure_on(peer, &self.cores(1)[..1], order)
                    .map(|(figures, _)| vec![figures]),
                peers => pairs::measure(peers, self.cores(peers.len()), order),
            };
            Ok((
                figures?,
                peers[0].fabric(),
                peers[0].fabric_reason().to_owned(),
            ))
        };
        match self {
            Self::Here { cores, allowed } => {
                let engine_cores = match setup.sessions {
                    1 => &cores[..],
                    _ => allowed,
                };
                session::with_sessions(*cores, engine_cores, setup, measured)
            }
            Self::There { to, allowed, .. } => {
                cores::keep_to(allowed)?;
                let node = node(setup)?;
                let peers = (0..setup.sessions).map(|_| node.connect(to));
                let peers = peers.collect::<Result<Vec<_>, _>>();
                measured(&peers.map_err(Error::subject)?)
            }
        }
    }

    /// Measures a limit.
    pub(crate) fn limit(&self, limit: Limit, setup: Setup, job: Job) -> Result<Figures, Error> {
        let (to, core, allowed) = match self {
            Self::Here { cores, .. } => return limit.measure(*cores, job),
            Self::There { to, core, allowed } => (to, *core, allowed),
        };
        cores::keep_to(allowed)?;
        let node = node(Setup {
            fabric: Some(FabricName::Tcp),
            ..setup
        })?;
        let peer = node.connect(to).map_err(Error::subject)?;
        session::measure_limit(&peer, core, limit, job)
    }
}

fn node(setup: Setup) -> Result<Node, Error> {
    setup.builder()?.build().map_err(Error::subject)
}
