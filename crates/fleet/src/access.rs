//! The connection to NATS. Encryption and permissions are NATS's own.

use crate::Error;
use async_nats::{Client, ConnectOptions, ServerAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an attempt to connect may take, and how long a silent server is believed to be there.
const SILENCE: Duration = Duration::from_secs(3);

/// Where the server is, and who asks.
#[derive(Clone, Debug)]
pub struct Access {
    /// URLs of servers, separated by commas: `nats://` or `tls://`, with `USER:PASSWORD@` if the server wants that.
    pub server: String,
    /// A file of NATS credentials (JWT and key).
    pub creds: Option<PathBuf>,
    /// The authority that signed the server's certificate; the system's own are trusted as well.
    pub tls_ca: Option<PathBuf>,
    /// This client's certificate and key.
    pub tls_client: Option<(PathBuf, PathBuf)>,
}

impl Access {
    /// Connects, now or not at all.
    ///
    /// # Errors
    /// [`Error::Credentials`], [`Error::NoServer`].
    pub(crate) async fn connect(&self) -> Result<Client, Error> {
        self.open(self.options().await?).await
    }

    /// Connects as soon as the server is there.
    ///
    /// # Errors
    /// What waiting does not help against.
    pub(crate) async fn connect_when_possible(&self) -> Result<Client, Error> {
        self.open(self.options().await?.retry_on_initial_connect()).await
    }

    async fn open(&self, options: ConnectOptions) -> Result<Client, Error> {
        options.connect(self.servers()?).await.map_err(|error| self.unreachable(error))
    }

    fn servers(&self) -> Result<Vec<ServerAddr>, Error> {
        let server = |url: &str| url.trim().parse().map_err(|error: std::io::Error| self.unreachable(error));
        self.server.split(',').map(server).collect()
    }

    fn unreachable(&self, error: impl std::error::Error) -> Error {
        Error::NoServer { server: self.shown(), why: with_sources(error) }
    }

    async fn options(&self) -> Result<ConnectOptions, Error> {
        let mut options = ConnectOptions::new().name("fairlane").connection_timeout(SILENCE).ping_interval(SILENCE);
        let servers = self.servers()?;
        let mut users = servers.iter().filter_map(|server| server.username().zip(server.password()));
        if let Some((user, password)) = users.next() {
            options = options.user_and_password(user.to_owned(), password.to_owned());
        }
        let readable = |path: &Path| {
            std::fs::File::open(path).map_err(|error| Error::Credentials(path.display().to_string(), error))
        };
        if let Some(creds) = &self.creds {
            let unusable = |error| Error::Credentials(creds.display().to_string(), error);
            options = options.credentials_file(creds).await.map_err(unusable)?;
        }
        if let Some(ca) = &self.tls_ca {
            readable(ca)?;
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.tls_client {
            readable(certificate)?;
            readable(key)?;
            options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(options)
    }

    /// The servers without passwords, for messages.
    fn shown(&self) -> String {
        let server = |url: &str| {
            let (scheme, rest) = url.trim().split_once("://").unwrap_or(("nats", url.trim()));
            format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or(rest))
        };
        self.server.split(',').map(server).collect::<Vec<_>>().join(", ")
    }
}

/// An error with what caused it, which NATS's own messages leave out.
pub(crate) fn with_sources(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text += &format!(": {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_no_passwords() {
        let server = "nats://admin:secret@one:4222, tls://two,three:4222".to_owned();
        let access = Access { server, creds: None, tls_ca: None, tls_client: None };
        assert_eq!(access.shown(), "nats://one:4222, tls://two, nats://three:4222");
    }
}
