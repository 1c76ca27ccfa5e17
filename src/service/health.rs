//! `grpc.health.v1`: the server under the empty name, every service, and every model under its own name.

use std::collections::BTreeSet;

use tokio::sync::watch;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::engine::{HealthView, ModelState};

/// What is told of each health name.
pub(crate) struct Health {
    reporter: HealthReporter,
    services: Vec<&'static str>,
    engine: watch::Receiver<HealthView>,
    draining: watch::Receiver<bool>,
    /// Models of which something was told.
    models: BTreeSet<String>,
}

/// The name of a service, for [`Health::new`].
pub(crate) const fn service_name<S: NamedService>(_: &S) -> &'static str {
    S::NAME
}

impl Health {
    pub(crate) fn new(
        reporter: HealthReporter,
        services: Vec<&'static str>,
        engine: watch::Receiver<HealthView>,
        draining: watch::Receiver<bool>,
    ) -> Health {
        Health { reporter, services, engine, draining, models: BTreeSet::new() }
    }

    /// Tells what is true now. After it returns, no check says SERVING that should not.
    pub(crate) async fn publish(&mut self) {
        let draining = *self.draining.borrow_and_update();
        let view = self.engine.borrow_and_update().clone();
        let draining = draining || view.draining;
        let status =
            |serves: bool| if serves && !draining { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status("", status(view.ready)).await;
        for name in &self.services {
            self.reporter.set_service_status(name, status(view.ready)).await;
        }
        for (name, state) in &view.models {
            self.reporter.set_service_status(name, status(*state == ModelState::Ready)).await;
        }
        let told = view.models.into_iter().map(|(name, _)| name).collect();
        for gone in std::mem::replace(&mut self.models, told).difference(&self.models) {
            self.reporter.clear_service_status(gone).await;
        }
    }

    /// Keeps telling until the engine or the server is gone.
    pub(crate) async fn follow(mut self) {
        loop {
            self.publish().await;
            let changed = tokio::select! {
                changed = self.engine.changed() => changed,
                changed = self.draining.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Ends every watch: a client that watches would otherwise hold its connection, and so the drain, for ever.
    pub(crate) async fn close(mut self) {
        let models: Vec<String> = self.engine.borrow().models.iter().map(|(name, _)| name.clone()).collect();
        self.reporter.clear_service_status("").await;
        for name in self.services.iter().copied().chain(models.iter().map(String::as_str)) {
            self.reporter.clear_service_status(name).await;
        }
    }
}
