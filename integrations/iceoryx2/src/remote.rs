//! A peer's carrier, as its own reports describe it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
};

use ibex::PeerAt;
use ibex_core::extend::warn_limited;
use iceoryx2::service::service_hash::ServiceHash;
use iceoryx2_link_backend::service_description::ServiceDescriptor;

use crate::control::Control;

/// The knowledge that one carrier has of another.
pub(crate) struct Remote<S = PeerAt> {
    /// The session over which this carrier reports to the peer, and sends it frames.
    pub(crate) outgoing: Option<S>,
    /// The session over which the peer reports, and sends its frames.
    pub(crate) incoming: Option<S>,
    told: Account,
    /// An account that is not complete yet.
    next: Option<Account>,
    /// Set once the peer has completed an account.
    pub(crate) is_known: bool,
    /// Set once the log says that the peer has exceeded the limit.
    has_exceeded: bool,
}

/// The services that a peer offers, and the channels that it has open.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) offers: BTreeMap<ServiceHash, ServiceDescriptor>,
    opened: BTreeMap<u64, ServiceDescriptor>,
    numbers: BTreeMap<ServiceDescriptor, BTreeSet<u64>>,
}

/// The changes that follow from a word.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Set if the offers have changed.
    pub(crate) offers: bool,
    /// Channels of these descriptors were opened or closed.
    pub(crate) channels: BTreeSet<ServiceDescriptor>,
}

impl<S> Default for Remote<S> {
    fn default() -> Self {
        Self {
            outgoing: None,
            incoming: None,
            told: Account::default(),
            next: None,
            is_known: false,
            has_exceeded: false,
        }
    }
}

impl<S: Copy + PartialEq + fmt::Display> Remote<S> {
    pub(crate) fn account(&self) -> &Account {
        &self.told
    }

    /// Handles a word that came over a session.
    pub(crate) fn hear(&mut self, on: S, word: Control) -> News {
        if word == Control::Begin {
            self.incoming = Some(on);
            self.next = Some(Account::default());
            return News::default();
        }
        // A session that the peer has left for another is ignored from then on.
        if self.incoming != Some(on) {
            return News::default();
        }
        if word == Control::End {
            return self.complete();
        }
        let is_complete = self.next.is_none();
        let account = self.next.as_mut().unwrap_or(&mut self.told);
        match account.hear(word) {
            Ok(news) if is_complete => news,
            Ok(_) => News::default(),
            Err(TooMany) => {
                if !mem::replace(&mut self.has_exceeded, true) {
                    warn_limited!(
                        on,
                        peer = %on,
                        limit = MAX_SERVICES,
                        "the peer has more services or channels than the limit; those that came \
                         last are not carried"
                    );
                }
                News::default()
            }
        }
    }

    /// Makes the new account the valid one. All channels are new: they may be on another session.
    fn complete(&mut self) -> News {
        let Some(next) = self.next.take() else {
            return News::default();
        };
        let last = mem::replace(&mut self.told, next);
        self.is_known = true;
        let mut channels: BTreeSet<_> = last.numbers.into_keys().collect();
        channels.extend(self.told.numbers.keys().cloned());
        News {
            offers: last.offers != self.told.offers,
            channels,
        }
    }
}

impl Account {
    /// Returns the numbers of the peer's open channels of a descriptor.
    pub(crate) fn numbers(&self, of: &ServiceDescriptor) -> Option<&BTreeSet<u64>> {
        self.numbers.get(of)
    }

    /// Returns the descriptors of the peer's open channels.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &ServiceDescriptor> {
        self.numbers.keys()
    }

    /// Returns the number of the peer's open channels.
    pub(crate) fn channels(&self) -> usize {
        self.opened.len()
    }

    fn hear(&mut self, word: Control) -> Result<News, TooMany> {
        match word {
            Control::Begin | Control::End => Ok(News::default()),
            Control::Offered(descriptor) => self.offer(descriptor),
            Control::Withdrawn(hash) => Ok(News::of_offers(self.offers.remove(&hash).is_some())),
            Control::Opened { number, descriptor } => self.open(number, descriptor),
            Control::Closed { number } => Ok(self.close(number)),
        }
    }

    fn offer(&mut self, descriptor: ServiceDescriptor) -> Result<News, TooMany> {
        let is_new = !self.offers.contains_key(&descriptor.hash);
        if is_new && self.offers.len() >= MAX_SERVICES {
            return Err(TooMany);
        }
        let last = self.offers.insert(descriptor.hash, descriptor.clone());
        Ok(News::of_offers(last.as_ref() != Some(&descriptor)))
    }

    fn open(&mut self, number: u64, descriptor: ServiceDescriptor) -> Result<News, TooMany> {
        // A reused number stands for another channel.
        let mut news = self.close(number);
        if self.opened.len() >= MAX_SERVICES {
            return Err(TooMany);
        }
        let numbers = self.numbers.entry(descriptor.clone()).or_default();
        numbers.insert(number);
        self.opened.insert(number, descriptor.clone());
        news.channels.insert(descriptor);
        Ok(news)
    }

    fn close(&mut self, number: u64) -> News {
        let mut news = News::default();
        if let Some(descriptor) = self.opened.remove(&number) {
            if let Some(numbers) = self.numbers.get_mut(&descriptor) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.numbers.remove(&descriptor);
                }
            }
            news.channels.insert(descriptor);
        }
        news
    }
}

impl News {
    fn of_offers(offers: bool) -> Self {
        Self {
            offers,
            channels: BTreeSet::new(),
        }
    }
}

/// The peer has as many as are accepted.
struct TooMany;

/// The most services that one peer offers, and the most channels that it has open.
pub(crate) const MAX_SERVICES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::descriptor;

    fn offered(name: &str) -> Control {
        Control::Offered(descriptor(name, "u64"))
    }

    fn opened(number: u64, payload: &str) -> Control {
        let descriptor = descriptor("a/service", payload);
        Control::Opened { number, descriptor }
    }

    /// Returns a peer that has completed an empty account on session 1.
    fn known() -> Remote<u32> {
        let mut remote = Remote::default();
        remote.hear(1, Control::Begin);
        remote.hear(1, Control::End);
        assert!(remote.is_known);
        remote
    }

    #[test]
    fn an_account_counts_when_it_is_complete() {
        let mut remote = Remote::default();
        let quiet = News::default();
        // Words before the first account belong to no session that counts.
        assert_eq!(remote.hear(1, offered("early")), quiet);
        assert_eq!(remote.hear(1, Control::Begin), quiet);
        assert_eq!(remote.hear(1, offered("a/service")), quiet);
        assert_eq!(remote.hear(1, opened(7, "u64")), quiet);
        assert!(!remote.is_known && remote.account().offers.is_empty());
        let news = remote.hear(1, Control::End);
        assert!(news.offers && remote.is_known);
        assert!(news.channels.contains(&descriptor("a/service", "u64")));
        assert_eq!(remote.account().offers.len(), 1);
    }

    #[test]
    fn a_later_account_replaces_the_earlier_one() {
        let mut remote = known();
        assert!(remote.hear(1, offered("first")).offers);
        remote.hear(1, opened(1, "u64"));
        // The peer continues over another session, with the same offers except the channel.
        remote.hear(2, Control::Begin);
        remote.hear(2, offered("first"));
        assert_eq!(
            remote.account().channels(),
            1,
            "until the account is complete"
        );
        let news = remote.hear(2, Control::End);
        assert!(!news.offers, "they are the same");
        assert_eq!(news.channels.len(), 1);
        assert_eq!(remote.account().channels(), 0);
        // The first session is ignored from now on.
        assert_eq!(remote.hear(1, offered("late")), News::default());
        assert_eq!(remote.account().offers.len(), 1);
    }

    #[test]
    fn a_channel_is_known_by_its_whole_descriptor() {
        let mut remote = known();
        remote.hear(1, opened(1, "u64"));
        remote.hear(1, opened(2, "u32"));
        let numbers = |payload| remote.account().numbers(&descriptor("a/service", payload));
        assert_eq!(numbers("u64"), Some(&BTreeSet::from([1])));
        assert_eq!(numbers("u32"), Some(&BTreeSet::from([2])));
        assert_eq!(numbers("u16"), None);
    }

    #[test]
    fn one_peer_takes_memory_up_to_a_limit() {
        let mut remote = known();
        for number in 0..2 * MAX_SERVICES {
            remote.hear(1, offered(&format!("service/{number}")));
            remote.hear(1, opened(number as u64, &format!("type{number}")));
        }
        let account = remote.account();
        assert_eq!(account.offers.len(), MAX_SERVICES);
        assert_eq!(account.channels(), MAX_SERVICES);
        // Withdrawn services make room for others.
        remote.hear(1, Control::Withdrawn(descriptor("service/0", "u64").hash));
        assert!(remote.hear(1, offered("another")).offers);
        remote.hear(1, Control::Closed { number: 0 });
        assert_eq!(remote.hear(1, opened(u64::MAX, "u64")).channels.len(), 1);
    }
}
