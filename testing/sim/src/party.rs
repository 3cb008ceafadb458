//! A side as it presents itself in handshakes: its node, its incarnation, and the session that the
//! other side may resume.
#![forbid(unsafe_code)]

use std::{net::IpAddr, sync::Arc, time::Instant};

use ibex_base::tls::AuthenticatedAs;
use ibex_bootstrap::{
    Fabric, HostHint, Local, NodeIdentity, PairRequest, Policy, Resumable, ResumableSessions,
    ResumeTicket, Secret, VerbsDevice, VerbsDevices, VerbsPair,
    handshake::{AcceptorEntropy, Handshake},
};
use ibex_harness::draw::Draw;
use ibex_protocol::framing::Carriage;

use super::{Side, met::Met, options::SimOptions, security::Cluster};

/// A side's node.
#[derive(Debug)]
pub(super) struct Party {
    local: Local,
    /// The fabrics over which its sessions may resume.
    fabrics: Vec<Fabric>,
    /// Set if a session that moved to TCP may return to a queue pair.
    fails_back: bool,
}

/// A side's time, and the deadline of a handshake that begins then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) now: Instant,
    pub(super) deadline: Instant,
}

impl Party {
    pub(super) fn new(side: Side, options: &SimOptions, random: &mut Draw) -> Self {
        let identity = NodeIdentity([side as u8 + 1; 16]);
        let mut local = Local::new(identity, random.word());
        local.credentials = options.secured.then(|| Cluster::Own.credentials() as _);
        (local.shm, local.verbs) = (Policy::Forbid, Policy::Forbid);
        let first = first_choice(options);
        let mut fabrics = vec![first];
        match first {
            Fabric::Tcp => {}
            Fabric::Shm => local.shm = Policy::Require,
            Fabric::Verbs => {
                local.verbs_devices = Some(Arc::new(Devices));
                (local.verbs, local.tcp) = match options.fails_over {
                    Some(_) => (Policy::Auto, Policy::Auto),
                    None => (Policy::Require, Policy::Forbid),
                };
                fabrics.extend(options.fails_over.map(|_| Fabric::Tcp));
            }
        }
        Self {
            local,
            fabrics,
            fails_back: options.fails_back,
        }
    }

    /// Returns an impostor, who knows of this side's session but not its secret. If nodes are
    /// authenticated, the impostor is a member of this cluster or of another.
    pub(super) fn impostor(&self, random: &mut Draw) -> Self {
        let mut local = self.local.clone();
        local.resumable = ResumableSessions::default();
        for (id, session) in self.local.resumable.lock().iter() {
            let mut session = session.clone();
            session.secret = secret(random);
            local.resumable.lock().insert(*id, session);
        }
        if local.credentials.is_some() && random.chance(500) {
            local.credentials = Some(Cluster::Foreign.credentials());
        }
        Self {
            local,
            fabrics: self.fabrics.clone(),
            fails_back: self.fails_back,
        }
    }

    /// Starts a new incarnation, without its session.
    pub(super) fn restart(&mut self, random: &mut Draw) {
        self.local.incarnation = random.word();
        self.forget();
    }

    // ---- Its session -----------------------------------------------------------------

    /// Begins a session.
    pub(super) fn enter(&mut self, id: [u8; 16], secret: Secret) {
        let session = Resumable {
            authenticated_as: self
                .local
                .credentials
                .as_ref()
                .map(|_| AuthenticatedAs::Member),
            secret,
            epoch: 0,
            fabrics: self.fabrics.clone(),
            reason: "it began otherwise".to_owned(),
        };
        self.forget();
        self.local.resumable.lock().insert(id, session);
    }

    /// Continues the session, if it is the present one.
    pub(super) fn goes_on(&mut self, met: &Met) {
        if let Some(session) = self.local.resumable.lock().get_mut(&met.session) {
            session.epoch = session.epoch.max(met.epoch);
            if met.fabric == Fabric::Tcp && !self.fails_back {
                session.fabrics = vec![Fabric::Tcp];
            }
        }
    }

    /// Forgets the session.
    pub(super) fn forget(&mut self) {
        self.local.resumable.lock().clear();
    }

    // ---- Its ends of handshakes --------------------------------------------------------

    pub(super) fn dial(&self, random: &mut Draw, clock: Clock) -> Handshake {
        let nonce = drawn(random);
        Handshake::dial(&self.local, HOST, nonce, clock.now, clock.deadline)
    }

    pub(super) fn resume(
        &self,
        ticket: ResumeTicket,
        random: &mut Draw,
        clock: Clock,
    ) -> Handshake {
        let nonce = drawn(random);
        Handshake::resume(&self.local, ticket, nonce, clock.now, clock.deadline)
    }

    pub(super) fn accept(&self, random: &mut Draw, clock: Clock) -> Handshake {
        let entropy = AcceptorEntropy {
            nonce: drawn(random),
            token: secret(random),
            session_id: drawn(random),
            resume_secret: secret(random),
        };
        Handshake::accept(&self.local, HOST, entropy, clock.now, clock.deadline)
    }
}

/// Returns the preferred fabric of a session: verbs for a carriage of buffers, and shared memory if
/// records travel through memory that is not simulated.
pub(super) fn first_choice(options: &SimOptions) -> Fabric {
    match (options.carriage, options.data_in_band) {
        (Carriage::Buffers { .. }, _) => Fabric::Verbs,
        (Carriage::Stream, false) => Fabric::Shm,
        (Carriage::Stream, true) => Fabric::Tcp,
    }
}

pub(super) fn drawn<const BYTES: usize>(random: &mut Draw) -> [u8; BYTES] {
    [(); BYTES].map(|()| random.word() as u8)
}

pub(super) fn secret(random: &mut Draw) -> Secret {
    Secret::new(drawn(random))
}

/// States that a node has RDMA devices; handshakes ask the meeting for them.
#[derive(Debug)]
struct Devices;

impl VerbsDevices for Devices {
    fn device(&self, _: IpAddr) -> Result<VerbsDevice, String> {
        Err("the meeting has the devices".to_owned())
    }

    fn prepare(&self, _: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
        Err("the meeting has the queue pairs".to_owned())
    }
}

/// The host of both sides.
const HOST: HostHint = HostHint {
    boot_id: [1; 16],
    pid: 1,
    uid: 1,
    pid_namespace: 1,
    network_namespace: 1,
};
