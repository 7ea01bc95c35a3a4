//! Records into the world the dashboard shows, each source on a thread of its own.
//!
//! The thread takes every record as it comes and never waits for a terminal: the world is locked only while a few
//! records are put in or while a frame is composed in memory, never while bytes go out to a terminal.

pub mod collector;
mod cursor;
mod judge;
pub mod live;
mod queues_before;
pub mod recorder;
pub mod replay;
pub mod workloads;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use probe_user::doctor;

use crate::app::key::Key;
use crate::app::world::{Status, World};

/// Inputs that may wait for the main loop.
const WAITING: usize = 1024;

/// What wakes the main loop.
#[derive(Debug)]
pub enum Input {
    /// A key was pressed.
    Key(Key),
    /// The terminal has another size.
    Resize,
    /// The world has changed.
    Data,
    /// A signal that asks to end.
    Signal(i32),
    /// The terminal is gone.
    TerminalLost(String),
}

/// The world, shared between a source of records and the dashboard.
#[derive(Debug, Clone)]
pub struct Shared {
    world: Arc<RwLock<World>>,
    changed: Arc<AtomicBool>,
    wake: SyncSender<Input>,
}

impl Shared {
    /// Shares a world; the receiver gets what wakes the main loop.
    pub fn new(world: World) -> (Self, Receiver<Input>) {
        let (wake, inputs) = sync_channel(WAITING);
        let shared = Self { world: Arc::new(RwLock::new(world)), changed: Arc::default(), wake };
        (shared, inputs)
    }

    /// The world, to look at.
    pub fn read(&self) -> RwLockReadGuard<'_, World> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The world, to change; [`Shared::announce`] afterwards.
    pub fn write(&self) -> RwLockWriteGuard<'_, World> {
        self.world.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that no record brought, and tells the main loop.
    pub fn change(&self, change: impl FnOnce(&mut World)) {
        let mut world = self.write();
        change(&mut world);
        world.touch();
        drop(world);
        self.announce();
    }

    /// Looks for what is wrong in the world as it is. The rules look at it beside whoever draws it; what they found goes
    /// in afterwards.
    pub fn diagnose(&self) {
        let (records, findings) = {
            let world = self.read();
            (world.records(), doctor::find(&world.model))
        };
        if self.write().found(records, findings) {
            self.announce();
        }
    }

    /// Tells the main loop that the world has changed. Never waits: where the inputs before it fill the channel, they
    /// wake the loop, which then asks [`Shared::take_change`].
    pub fn announce(&self) {
        if !self.changed.swap(true, Ordering::AcqRel) {
            let _ = self.wake.try_send(Input::Data);
        }
    }

    /// Whether the world has changed since the last call.
    pub fn take_change(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// Whether nothing more will come.
    pub fn has_ended(&self) -> bool {
        matches!(self.read().source.status, Status::Ended(_) | Status::Failed(_))
    }

    /// Where other inputs go.
    pub fn inputs(&self) -> SyncSender<Input> {
        self.wake.clone()
    }
}
