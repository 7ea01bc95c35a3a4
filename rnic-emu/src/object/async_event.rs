//! Asynchronous events: errors of queues and the like, fetched with `ibv_get_async_event`.

use crate::abi::ibv_async_event;
use crate::sys::bell::Bell;
use crate::sys::lock::Lock;
use std::collections::VecDeque;
use std::io;

/// Events waiting for the program.
pub struct AsyncEvents {
    bell: Bell,
    queue: Lock<VecDeque<ibv_async_event>>,
}

impl AsyncEvents {
    /// No events yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new(false)?, queue: Lock::new(VecDeque::with_capacity(16)) })
    }

    /// The context's `async_fd`.
    pub fn fd(&self) -> i32 {
        self.bell.raw()
    }

    /// Adds an event about `element` (a pointer, or a port number).
    pub fn raise(&self, element: usize, event_type: i32) {
        self.queue.lock().push_back(ibv_async_event { element, event_type });
        self.bell.ring();
    }

    /// The next event, waiting for it unless the program made the descriptor non-blocking.
    pub fn take(&self) -> io::Result<ibv_async_event> {
        loop {
            self.bell.take()?;
            // The element may have been destroyed in between, taking its events with it.
            if let Some(event) = self.queue.lock().pop_front() {
                return Ok(event);
            }
        }
    }

    /// Removes the events about a QP, CQ or SRQ that is being destroyed.
    pub fn forget(&self, element: usize) {
        // Events about ports carry small numbers, which are no object's address. The bell keeps its count: a reader
        // that finds no event waits for the next.
        self.queue.lock().retain(|e| e.element != element);
    }
}
