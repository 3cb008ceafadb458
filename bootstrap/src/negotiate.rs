//! Negotiation: the version and the fabric that two nodes agree on.
//!
//! Rules:
//!
//! - The version is a pure function of what both ends sent, so both compute the same answer and the
//!   same error. The dialer chooses the fabric so, and the acceptor checks that its offer allows it.
//! - The error names the end and the wish that is the obstacle.
//! - Only the reason why an end has no RDMA device is known to that end alone, which adds it to its
//!   words.
#![forbid(unsafe_code)]

use crate::fabric::{Fabric, FabricOffer, Policy, VerbsDevice};
use crate::host_tags::UNKNOWN;
use crate::integrity::Integrity;
use crate::message::{GidKind, Offer, Version, VersionRange};
pub use crate::party::Party;

/// Returns the highest version that both ranges hold, or `None`. The function is symmetric.
pub fn version(a: VersionRange, b: VersionRange) -> Option<Version> {
    let newest = a.newest.min(b.newest);
    (newest >= a.oldest.max(b.oldest)).then_some(newest)
}

/// Returns the fabric for a session, and the reason for it.
///
/// In this order:
/// 1. A fabric that an end requires, if it can be had. Two different requirements, or one that
///    cannot be met, are an error.
/// 2. A fabric that an end prefers and that can be had, the fastest first.
/// 3. shm on the same host, under the same user or where both ends share memory with others, and
///    within one network namespace or where both ends have a directory; verbs with RDMA hardware at
///    both ends; else tcp. A software RDMA device is slower than the kernel's tcp, so it is taken
///    only by rules 1 and 2.
///
/// `ruled_out` are the fabrics that were tried already, with what happened.
pub fn fabric(
    dialer: &Offer,
    acceptor: &Offer,
    ruled_out: &[RuledOut],
) -> Result<Chosen, FabricConflict> {
    let meeting = Meeting {
        dialer,
        acceptor,
        ruled_out,
    };
    if let Some((by, fabric)) = meeting.required()? {
        return match meeting.obstacle(fabric) {
            None => Ok(Chosen::new(fabric, &format!("required by the {by}"))),
            Some(why) => Err(FabricConflict::Unavailable { by, fabric, why }),
        };
    }
    let mut obstacles = Vec::new();
    let mut unmet = String::new();
    let mut possible = Vec::new();
    for fabric in Fabric::FASTEST_FIRST {
        let Some(why) = meeting.obstacle(fabric) else {
            possible.push(fabric);
            continue;
        };
        let obstacle = format!("not {fabric}: {why}");
        if meeting.wishes(fabric, Policy::Prefer).is_some() {
            unmet = format!("{unmet}; {obstacle}");
        }
        obstacles.push(obstacle);
    }
    for &fabric in &possible {
        if let Some(by) = meeting.wishes(fabric, Policy::Prefer) {
            let why = format!("preferred by the {by}{unmet}");
            return Ok(Chosen::new(fabric, &why));
        }
    }
    // A session over tcp lists all obstacles; other sessions list those that concern the ends'
    // wishes.
    let chosen = |fabric, why| Ok(Chosen::new(fabric, &format!("{why}{unmet}")));
    match possible.first() {
        Some(Fabric::Shm) if dialer.is_of_user(acceptor) => {
            chosen(Fabric::Shm, "same host, same user")
        }
        Some(Fabric::Shm) => chosen(
            Fabric::Shm,
            "same host, and both nodes share memory with other users",
        ),
        Some(Fabric::Verbs) => chosen(Fabric::Verbs, "RDMA hardware on both nodes"),
        Some(Fabric::Tcp) => Ok(Chosen::new(Fabric::Tcp, &obstacles.join("; "))),
        None => Err(FabricConflict::Nothing {
            why: obstacles.join("; "),
        }),
    }
}

/// Returns an error if the acceptor cannot go along with `chosen`.
///
/// The choice need not be what [`fabric`] computes here: a dialer of a later version may weigh
/// otherwise, and it knows which fabrics it could not reach. But no dialer talks an acceptor into a
/// fabric that the acceptor's own offer excludes.
pub fn permitted(dialer: &Offer, acceptor: &Offer, chosen: Fabric) -> Result<(), FabricConflict> {
    let meeting = Meeting {
        dialer,
        acceptor,
        ruled_out: &[],
    };
    match meeting.required()? {
        Some((by, fabric)) if fabric != chosen => Err(FabricConflict::Unavailable {
            by,
            fabric,
            why: format!("the other end chose {chosen}"),
        }),
        _ => match meeting.obstacle(chosen) {
            None => Ok(()),
            Some(why) => Err(FabricConflict::Unavailable {
                by: Party::Dialer,
                fabric: chosen,
                why,
            }),
        },
    }
}

/// Returns the reason why no session of the two can ever use `fabric`, if the policy or the build
/// of one of them excludes it.
pub fn exclusion(dialer: &Offer, acceptor: &Offer, fabric: Fabric) -> Option<String> {
    let meeting = Meeting {
        dialer,
        acceptor,
        ruled_out: &[],
    };
    match meeting.required() {
        Ok(Some((by, required))) if required != fabric => {
            Some(format!("the {by} requires {required}"))
        }
        _ => meeting.unwanted(fabric),
    }
}

/// Tells whether payloads have a checksum where tcp carries them, as [`Integrity`] says. The
/// function is symmetric. Sealed connections need no checksum.
pub fn payload_checksums(a: &Offer, b: &Offer, is_sealed: bool) -> bool {
    match (a.integrity, b.integrity) {
        (Integrity::On, _) | (_, Integrity::On) => true,
        (Integrity::Off, _) | (_, Integrity::Off) => false,
        (Integrity::Auto, Integrity::Auto) => !is_sealed && !a.host.same_network(&b.host),
    }
}

/// Returns an error if queue pairs with these kinds of GID cannot reach each other.
pub fn gid_types(dialer: GidKind, acceptor: GidKind) -> Result<(), String> {
    if dialer == acceptor {
        return Ok(());
    }
    Err(format!(
        "the {} speaks {dialer} and the {} {acceptor}; choose a GID of the same type at both ends",
        Party::Dialer,
        Party::Acceptor
    ))
}

/// Returns the text that `end` adds to the dialer's reason for a session over `chosen`: why it has
/// no RDMA device of its own, if that is the obstacle.
pub(crate) fn own_lack(end: Party, ours: &Offer, theirs: &Offer, chosen: Fabric) -> String {
    let device = |offer: &Offer| offer.fabric(Fabric::Verbs)?.device.clone();
    let verbs = ours.fabric(Fabric::Verbs);
    match verbs.and_then(|verbs| verbs.no_device.as_ref()) {
        Some(why) if chosen == Fabric::Tcp && device(theirs).is_some() => {
            format!("; the {end} has none because {why}")
        }
        _ => String::new(),
    }
}

/// A fabric that was agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The fabric.
    pub fabric: Fabric,
    /// The reason, in words that begin with the fabric.
    pub reason: String,
}

/// A fabric that was tried and could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuledOut {
    /// The fabric.
    pub fabric: Fabric,
    /// The obstacle that was met.
    pub why: String,
}

/// The reason why no fabric suits both ends. One of the two configurations has to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricConflict {
    /// Two fabrics are required, and a session has one.
    #[error(
        "the {} requires {} and the {} requires {}; a session runs on one fabric: \
         relax one of the two policies, which programs and IBEX_FABRICS set",
        first.0, first.1, second.0, second.1
    )]
    TwoRequired {
        /// The first requirement, and whose it is.
        first: (Party, Fabric),
        /// The other requirement, and whose it is.
        second: (Party, Fabric),
    },
    /// A fabric that one end insists on cannot be had.
    #[error(
        "the {by} insists on {fabric}, which cannot be had: {why}; use `Prefer` in its program, or \
         name a second fabric in its IBEX_FABRICS"
    )]
    Unavailable {
        /// The end that insists.
        by: Party,
        /// The fabric that it insists on.
        fabric: Fabric,
        /// The obstacle.
        why: String,
    },
    /// No fabric is left.
    #[error(
        "no fabric suits both nodes: {why}; allow one that both can use, in the programs or by \
         IBEX_FABRICS"
    )]
    Nothing {
        /// Each fabric and what stands in its way.
        why: String,
    },
}

/// Words for an end whose user is unknown.
pub(crate) const UNMAPPED: &str = "runs as a user that its user namespace does not map, and that \
     it cannot tell from other such users";

/// Words for an end whose host is unknown.
const UNKNOWN_HOST: &str =
    "cannot tell which host it runs on: it cannot read /proc/sys/kernel/random/boot_id";

/// Words for a connection that does not end where it began, as far as an end can tell.
const LEAVES: &str = "has an address that is not of the network namespace of";

/// Words for a kernel or sandbox that gives an end no memory files.
const DENIED: &str = "gives it no memory files to share (memfd_create, fallocate or seals)";

/// Two offers side by side.
struct Meeting<'a> {
    dialer: &'a Offer,
    acceptor: &'a Offer,
    ruled_out: &'a [RuledOut],
}

impl Meeting<'_> {
    /// Returns the one fabric that either end requires.
    fn required(&self) -> Result<Option<(Party, Fabric)>, FabricConflict> {
        let mut found: Option<(Party, Fabric)> = None;
        for (end, offer) in self.ends() {
            let required = offer.fabrics.iter().filter(|f| f.policy == Policy::Require);
            for second in required.map(|fabric| (end, fabric.kind)) {
                match found {
                    Some(first) if first.1 != second.1 => {
                        return Err(FabricConflict::TwoRequired { first, second });
                    }
                    Some(_) => {}
                    None => found = Some(second),
                }
            }
        }
        Ok(found)
    }

    /// Returns the end that has this wish, the dialer first.
    fn wishes(&self, fabric: Fabric, policy: Policy) -> Option<Party> {
        self.end_where(|offer| offer.fabric(fabric).is_some_and(|f| f.policy == policy))
    }

    /// Returns the words for the end that does not have or want `fabric`, if there is one.
    fn unwanted(&self, fabric: Fabric) -> Option<String> {
        if let Some(end) = self.end_where(|offer| offer.fabric(fabric).is_none()) {
            return Some(format!(
                "{fabric} is not compiled into the {end} (feature `{fabric}`)"
            ));
        }
        if let Some(end) = self.wishes(fabric, Policy::Forbid) {
            return Some(format!("the {end}'s policy forbids {fabric}"));
        }
        let end = self.end_where(|offer| offer.requires_encryption)?;
        (fabric == Fabric::Verbs)
            .then(|| format!("the {end} requires encryption, and {fabric} has none"))
    }

    /// Returns the obstacle to using `fabric`, if there is one.
    fn obstacle(&self, fabric: Fabric) -> Option<String> {
        if let Some(unwanted) = self.unwanted(fabric) {
            return Some(unwanted);
        }
        if let Some(tried) = self.ruled_out.iter().find(|tried| tried.fabric == fabric) {
            return Some(tried.why.clone());
        }
        match fabric {
            Fabric::Shm => self.shm_obstacle(),
            Fabric::Tcp => None,
            Fabric::Verbs => self.verbs_obstacle(),
        }
    }

    fn shm_obstacle(&self) -> Option<String> {
        let (dialer, acceptor) = (&self.dialer.host, &self.acceptor.host);
        if let Some(end) = self.end_where(|offer| offer.host.boot == UNKNOWN) {
            return Some(format!("the {end} {UNKNOWN_HOST}"));
        }
        if !dialer.same_boot(acceptor) {
            return Some("the nodes run on different hosts".to_string());
        }
        if !dialer.same_network(acceptor)
            && let Some(apart) = self.namespaces_obstacle()
        {
            return Some(apart);
        }
        for (end, offer) in self.ends() {
            if offer.fabric(Fabric::Shm)?.is_denied {
                return Some(format!("the kernel or sandbox of the {end} {DENIED}"));
            }
        }
        self.users_obstacle()
    }

    /// Returns the obstacle to sharing memory that the network namespaces of the two nodes are, unless
    /// they can meet in a directory.
    fn namespaces_obstacle(&self) -> Option<String> {
        let without = self.shm_end_where(|shm| !shm.has_directory)?;
        let why = match self.end_where(|offer| offer.host.network == UNKNOWN) {
            Some(end) => format!("the connection {LEAVES} the {end}"),
            None => "the nodes are in different network namespaces".to_string(),
        };
        Some(format!(
            "{why}, and the {without} has no shared_memory_directory"
        ))
    }

    /// Returns the obstacle to sharing memory that the users of the two nodes are, if they are one.
    /// Whether each end allows the other's user, it finds out itself, by the kernel's word.
    fn users_obstacle(&self) -> Option<String> {
        if self.dialer.is_of_user(self.acceptor) {
            return None;
        }
        let keeps_apart = self.shm_end_where(|shm| !shm.crosses_users)?;
        let why = match self.end_where(|offer| offer.host.user == UNKNOWN) {
            Some(end) => format!("the {end} {UNMAPPED}"),
            None => "the nodes run as different users".to_string(),
        };
        Some(format!(
            "{why}, and the {keeps_apart} shares memory with no other (share_memory_with)"
        ))
    }

    fn verbs_obstacle(&self) -> Option<String> {
        let wished = [Policy::Require, Policy::Prefer]
            .into_iter()
            .any(|policy| self.wishes(Fabric::Verbs, policy).is_some());
        for (end, offer) in self.ends() {
            let verbs = offer.fabric(Fabric::Verbs)?;
            match (&verbs.device, &verbs.no_device) {
                (None, None) => return Some(format!("the {end} has no RDMA device")),
                (None, Some(why)) => {
                    return Some(format!(
                        "the {end} has no RDMA device for this connection: {why}"
                    ));
                }
                (
                    Some(VerbsDevice {
                        hardware: false,
                        name,
                    }),
                    _,
                ) if !wished => {
                    return Some(format!(
                        "the {end}'s device {name} is software, slower than tcp"
                    ));
                }
                (Some(_), _) => {}
            }
        }
        None
    }

    /// Returns the end whose offer is so, the dialer first.
    fn end_where(&self, is_so: impl Fn(&Offer) -> bool) -> Option<Party> {
        let mut ends = self.ends().into_iter();
        ends.find(|(_, offer)| is_so(offer)).map(|(end, _)| end)
    }

    /// Returns the end that has no shared memory, or whose shared memory is so.
    fn shm_end_where(&self, is_so: impl Fn(&FabricOffer) -> bool) -> Option<Party> {
        self.end_where(|offer| offer.fabric(Fabric::Shm).is_none_or(&is_so))
    }

    fn ends(&self) -> [(Party, &Offer); 2] {
        [
            (Party::Dialer, self.dialer),
            (Party::Acceptor, self.acceptor),
        ]
    }
}

impl Chosen {
    fn new(fabric: Fabric, why: &str) -> Chosen {
        Chosen {
            fabric,
            reason: format!("{fabric}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests;
