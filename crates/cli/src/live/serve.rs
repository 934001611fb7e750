//! Answers Prometheus over HTTP on a loopback address: one request at a time, read only, with a bound on each wait.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use ironrail_group::error::GroupError;

use super::{pages, prometheus};
use crate::output;

/// The default address.
pub(super) const ADDRESS: &str = "127.0.0.1:9417";
/// A slower client gets no answer.
const PATIENCE: Duration = Duration::from_secs(2);
const REQUEST_MAX: usize = 4096;

/// Serves until the process is interrupted.
///
/// # Errors
///
/// If the address is not a loopback address, or is in use.
pub(super) fn forever(address: SocketAddr, folder: &Path) -> Result<(), GroupError> {
    if !address.ip().is_loopback() {
        return Err(GroupError::Usage(format!(
            "{address} is no loopback address: counters name hosts and processes, and are served to this host alone"
        )));
    }
    let taken = |error: io::Error| GroupError::System {
        what: "listening for Prometheus",
        error: io::Error::new(error.kind(), format!("{address}: {error}")),
    };
    let listener = TcpListener::bind(address).map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    output::line(format_args!("serving http://{address}/metrics"));
    for stream in listener.incoming().flatten() {
        // A client that disconnects is not an error.
        let _gone = answer(stream, folder);
    }
    Ok(())
}

fn answer(mut stream: TcpStream, folder: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST_MAX];
    let mut len = 0;
    while len < REQUEST_MAX && !request[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut request[len..])? {
            0 => break,
            read => len += read,
        }
    }
    let (status, body) = match request[..len].split(|byte| *byte == b' ').nth(1) {
        Some(b"/metrics" | b"/") if request.starts_with(b"GET ") => {
            let found = pages::find(folder, &[]).unwrap_or_default();
            ("200 OK", prometheus::text(&found))
        }
        _ => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
