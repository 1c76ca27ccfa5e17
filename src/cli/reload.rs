//! `plimsoll reload`: has a server read its configuration and its repository again, and shows what came of it.

use std::process::ExitCode;

use anyhow::{Context, bail};

use super::bench::connect::CredentialArgs;
use crate::service::proto::plimsoll::models_client::ModelsClient;
use crate::service::proto::plimsoll::{ModelChange, ReloadRequest, ReloadResponse};

/// Have a server read its configuration and its repository again
///
/// All of it is checked first, and all of it is done or nothing. Answers when every model that is loaded is there or has
/// failed. Exit code: 0 if all that differs is in force, 1 if something is not. SIGHUP does the same and tells the log.
#[derive(clap::Args, Clone, Debug)]
pub struct ReloadArgs {
    /// Where the server takes calls of administration over gRPC.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8001")]
    pub address: String,

    /// What it asks of who calls it.
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

/// Runs `plimsoll reload`.
///
/// # Errors
/// Why nothing was reloaded.
pub fn run(args: ReloadArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let response = runtime.block_on(async {
        let connection = args.credentials.connect(&args.address).await?;
        match ModelsClient::new(connection).reload(ReloadRequest {}).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => bail!("{}", status.message()),
        }
    });
    let response = response.with_context(|| format!("the server at {}", args.address))?;
    print!("{}", table(&response));
    let failed = response.changes.iter().any(|change| !change.error.is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A line for each difference.
fn table(response: &ReloadResponse) -> String {
    let ReloadResponse { changes, after_restart } = response;
    if changes.is_empty() && after_restart.is_empty() {
        return "nothing has changed\n".to_owned();
    }
    let line = |ModelChange { model, kind, version, error }: &ModelChange| match error.as_str() {
        "" if kind == "removed" => format!("{model}: removed\n"),
        "" => format!("{model}: {kind}, version {version}\n"),
        error => format!("{model}: could not be {kind}: {error}\n"),
    };
    let later = |difference: &String| format!("{difference}: from the next start\n");
    changes.iter().map(line).chain(after_restart.iter().map(later)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_has_a_line() {
        let change = |model: &str, kind: &str, version: &str, error: &str| ModelChange {
            model: model.to_owned(),
            kind: kind.to_owned(),
            version: version.to_owned(),
            error: error.to_owned(),
        };
        let changes = vec![
            change("a", "replaced", "3", ""),
            change("b", "removed", "1", ""),
            change("c", "added", "", "it does not fit"),
        ];
        let after_restart = vec!["grpc_port: 8001 -> 9001".to_owned()];
        let expected = "a: replaced, version 3\nb: removed\nc: could not be added: it does not fit\n\
                        grpc_port: 8001 -> 9001: from the next start\n";
        assert_eq!(table(&ReloadResponse { changes, after_restart }), expected);
        assert_eq!(table(&ReloadResponse::default()), "nothing has changed\n");
    }
}
