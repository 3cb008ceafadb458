//! Memory windows: keys that are bound to a part of a region, and invalidated.

use rustix::io::Errno;

use super::{
    Call, FakeProvider, PostedSend,
    delivery::{Attempt, WINDOW_BIND},
    world::State,
};
use crate::{
    abi::{SendWr, access_flags, wc_opcode, wr_opcode},
    provider::{WindowHandle, WindowKind, next_key},
};

/// A memory window.
#[derive(Debug)]
pub(super) struct FakeWindow {
    pub(super) domain: u64,
    pub(super) kind: WindowKind,
    /// The key that is or was valid; its lowest byte changes with each binding.
    pub(super) key: u32,
    pub(super) bound: Option<Bound>,
}

/// The part of a region that a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) region: u64,
    address: u64,
    bytes: u64,
    access: u32,
    /// The queue pair that it was bound by; only it reaches a window of type 2.
    pub(super) pair: u64,
}

/// The binding that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedBind {
    /// The number of the window.
    pub(super) window: u64,
    /// The number of the region; soft-RoCE's driver needs one also to unbind.
    pub(super) region: Option<u64>,
    /// The key that the window gets.
    pub key: u32,
    /// The first address.
    pub address: u64,
    /// The length in bytes; 0 to unbind.
    pub bytes: u64,
    /// Bits of `enum ibv_access_flags`.
    pub access: u32,
}

impl FakeWindow {
    pub(super) fn new(id: u64, domain: u64, kind: WindowKind) -> Self {
        Self {
            domain,
            kind,
            key: WINDOWS | (id as u32 & 0x7f_ffff) << 8,
            bound: None,
        }
    }
}

/// The bit that distinguishes keys of windows from those of regions.
const WINDOWS: u32 = 1 << 31;

impl FakeProvider {
    pub(super) fn new_window(
        &self,
        domain: u64,
        kind: WindowKind,
    ) -> Result<(WindowHandle, u32), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateWindow)?;
        if !state.device_of(state.domains[&domain].context).has_windows {
            return Err(Errno::OPNOTSUPP);
        }
        let id = state.new_id();
        let window = FakeWindow::new(id, domain, kind);
        let key = window.key;
        state.windows.insert(id, window);
        Ok((WindowHandle::new(self.handle(id)).expect("a box"), key))
    }

    pub(super) fn end_window(&self, id: u64) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyWindow)?;
        state.windows.remove(&id);
        Ok(())
    }

    /// Posts the binding of a window of type 1. Returns the key that it gets.
    pub(super) fn bind_first(
        &self,
        pair: u64,
        window: u64,
        mut request: SendWr,
    ) -> Result<u32, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::BindWindow)?;
        let window = state.windows.get(&window).ok_or(Errno::BADF)?;
        if window.kind != WindowKind::One {
            return Err(Errno::INVAL);
        }
        request.bind.rkey = next_key(window.key);
        state.post_send(pair, &request)?;
        state.progress();
        Ok(request.bind.rkey)
    }
}

impl State {
    /// Does a request that does not reach the peer; `None` for others.
    pub(super) fn attempt_here(&mut self, pair: u64, send: &PostedSend) -> Option<Attempt> {
        let (opcode, is_done) = match (send.opcode, send.bind) {
            (wr_opcode::BIND_WINDOW, Some(bind)) => {
                (wc_opcode::BIND_WINDOW, self.bind(pair, &bind).is_some())
            }
            (wr_opcode::LOCAL_INVALIDATE, _) => (
                wc_opcode::LOCAL_INVALIDATE,
                self.invalidate(pair, send.immediate),
            ),
            _ => return None,
        };
        Some(match is_done {
            true => Attempt::Done { opcode, bytes: 0 },
            false => Attempt::Failed(WINDOW_BIND),
        })
    }

    /// Binds a window, by the rules of soft-RoCE (`rxe_check_bind_mw`,
    /// drivers/infiniband/sw/rxe/rxe_mw.c).
    fn bind(&mut self, pair: u64, bind: &PostedBind) -> Option<()> {
        let domain = self.pairs[&pair].domain;
        let window = self.windows.get(&bind.window)?;
        let is_second = window.kind == WindowKind::Two;
        if window.domain != domain
            || is_second && (window.bound.is_some() || bind.bytes == 0)
            || window.key & !0xff != bind.key & !0xff
            || window.key == bind.key
            || bind.region.is_none()
        {
            return None;
        }
        let bound = match bind.region {
            Some(id) if bind.bytes > 0 => {
                let region = self.regions.get(&id)?;
                let writes = access_flags::REMOTE_WRITE | access_flags::REMOTE_ATOMIC;
                let offset = bind.address.checked_sub(region.base)?;
                if offset.checked_add(bind.bytes)? > region.bytes
                    || region.access & access_flags::WINDOW_BIND == 0
                    || bind.access & writes != 0 && region.access & access_flags::LOCAL_WRITE == 0
                {
                    return None;
                }
                Some(Bound {
                    region: id,
                    address: bind.address,
                    bytes: bind.bytes,
                    access: bind.access,
                    pair,
                })
            }
            _ => None,
        };
        let window = self.windows.get_mut(&bind.window)?;
        (window.key, window.bound) = (bind.key, bound);
        Some(())
    }

    /// Invalidates a key of a queue pair's end; false if it is not valid there. Soft-RoCE's kernel
    /// panics in place of that.
    pub(super) fn invalidate(&mut self, pair: u64, key: u32) -> bool {
        let mut windows = self.windows.values_mut();
        let found = windows.find(|window| {
            let is_of_pair = window.bound.is_some_and(|bound| bound.pair == pair);
            window.kind == WindowKind::Two && window.key == key && is_of_pair
        });
        found.is_some_and(|window| window.bound.take().is_some())
    }

    /// Returns the place of a range, if a queue pair lets its peer reach it with these rights.
    pub(super) fn grants(
        &self,
        pair_id: u64,
        (address, key): (u64, u32),
        length: u32,
        access: u32,
    ) -> Option<u64> {
        let pair = &self.pairs[&pair_id];
        if pair.access & access == 0 {
            return None;
        }
        if key & WINDOWS == 0 {
            return self.region(key, address, length, access);
        }
        let domain = pair.domain;
        let mut windows = self.windows.values();
        let window = windows.find(|window| window.key == key && window.domain == domain)?;
        let bound = window.bound?;
        let offset = address.checked_sub(bound.address)?;
        let end = offset.checked_add(length.into())?;
        let is_granted = (window.kind == WindowKind::One || bound.pair == pair_id)
            && end <= bound.bytes
            && bound.access & access == access;
        is_granted.then(|| self.region(bound.region as u32, address, length, 0))?
    }
}
