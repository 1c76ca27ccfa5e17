//! How the engine ends: drained, stopped, or without its device.

use super::answer::Failure;
use super::core::Core;
use super::inbox::Reply;
use crate::admission::Rejection;
use crate::model::Fault;
use crate::units::Timestamp;

impl Core {
    /// Admits no more; what is accepted is finished, models that it waits for are loaded.
    pub(super) fn drain(&mut self, now: Timestamp, reply: Reply<()>) {
        self.drainers.get_or_insert_default().push(reply);
        self.publish_health();
        self.drop_idle_loads(now);
    }

    /// Tells who waits for it that every accepted request is answered.
    pub(super) fn tell_drainers(&mut self) {
        if self.pending.len() == 0 {
            for drainer in self.drainers.iter_mut().flat_map(|drainers| drainers.drain(..)) {
                let _ = drainer.send(());
            }
        }
    }

    /// The device's thread has ended although nobody told it to: no report will come.
    pub(super) fn device_ended(&mut self, now: Timestamp) {
        if !self.stopped {
            self.lose_device(&Fault::DeviceLost { message: "its thread has ended".to_owned() });
            self.abandon(now);
        }
    }

    /// The device is lost. Health says so before anybody is answered; [`Core::abandon`] has to follow.
    pub(super) fn lose_device(&mut self, fault: &Fault) {
        if !self.poisoned {
            tracing::error!("nothing more can be run: {fault}");
            self.poisoned = true;
            self.publish_health();
        }
    }

    /// Answers all that waits for a device that is lost: another server may still help.
    pub(super) fn abandon(&mut self, now: Timestamp) {
        self.reject_all(now);
        self.loads.clear();
        // Who waits for it is told by its end.
        self.reloading = None;
        self.drop_traces();
        for life in &mut self.models {
            life.tell_load_waiters(&Err(Failure::Rejected(Rejection::Draining)));
            for waiter in life.unload_waiters.drain(..) {
                let _ = waiter.send(Err(Failure::Rejected(Rejection::Draining)));
            }
        }
    }

    /// Answers what is left. The thread ends, and with it the device.
    pub(super) fn stop(&mut self, now: Timestamp) {
        self.stopped = true;
        self.reloading = None;
        self.drop_traces();
        self.reject_all(now);
    }

    fn reject_all(&mut self, now: Timestamp) {
        for id in self.pending.ids() {
            self.scheduler.cancel(id);
            self.reject(now, id, Rejection::Draining);
        }
    }
}
