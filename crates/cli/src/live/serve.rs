//! Answers Prometheus over HTTP on a loopback address: one request at a time, read only, with a bound on each wait.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ironrail_group::error::GroupError;

use super::pages::Query;
use super::prometheus;
use crate::output;

/// The default address.
pub(super) const ADDRESS: &str = "127.0.0.1:9417";
/// The limit for a client's whole request, and for the whole answer. A slower client gets no answer, or only a part.
const PATIENCE: Duration = Duration::from_secs(2);
const REQUEST_MAX: usize = 4096;
/// The time between two attempts to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process is interrupted.
///
/// # Errors
///
/// If the address is not a loopback address, or is in use.
pub(super) fn forever(address: SocketAddr, query: &Query) -> Result<(), GroupError> {
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
    loop {
        match listener.accept() {
            // A client that disconnects is not an error.
            Ok((stream, _)) => drop(answer(stream, query)),
            // Without free descriptors the client stays in the queue, and every accept fails at once.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn answer(mut stream: TcpStream, query: &Query) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut request = [0; REQUEST_MAX];
    let mut len = 0;
    while len < REQUEST_MAX && !request[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut request[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            // Also where the process was stopped and continued: a read with a timeout is not repeated by the kernel (signal(7)).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let answer = Answer::to(&request[..len]);
    let (status, body) = match answer {
        Answer::Metrics { .. } => metrics(query),
        Answer::NotFound | Answer::NotAllowed => (answer.status(), "GET /metrics\n".to_owned()),
    };
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if answer != (Answer::Metrics { head: true }) {
        text.push_str(&body);
    }
    write_by(&mut stream, text.as_bytes(), Instant::now() + PATIENCE)
}

/// The status and the body. Without pages Prometheus would take all processes for ended.
fn metrics(query: &Query) -> (&'static str, String) {
    match query.find() {
        Ok(found) => {
            let text = prometheus::text(&found, query.all_users);
            (Answer::Metrics { head: false }.status(), text)
        }
        Err(why) => ("500 Internal Server Error", format!("{why}\n")),
    }
}

/// Writes everything, or as much as the client reads until `end`: a client may read a little at a time without end.
fn write_by(stream: &mut TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The counters, or for HEAD their length alone.
    Metrics {
        head: bool,
    },
    NotFound,
    NotAllowed,
}

impl Answer {
    /// By the request line of RFC 9112, §3. What follows `?` is ignored: Prometheus adds the parameters of its scrape_config.
    fn to(request: &[u8]) -> Self {
        let mut words = request.split(|byte| byte.is_ascii_whitespace());
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let head = match method {
            b"GET" => false,
            b"HEAD" => true,
            _ => return Self::NotAllowed,
        };
        match target.split(|byte| *byte == b'?').next() {
            Some(b"/metrics" | b"/") => Self::Metrics { head },
            _ => Self::NotFound,
        }
    }

    const fn status(self) -> &'static str {
        match self {
            Self::Metrics { .. } => "200 OK",
            Self::NotFound => "404 Not Found",
            Self::NotAllowed => "405 Method Not Allowed\r\nAllow: GET, HEAD",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::By;
    use super::*;

    #[test]
    fn a_client_that_still_reads_at_the_end_of_patience_gets_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let over = write_by(&mut stream, b"more", Instant::now()).unwrap_err();
        assert_eq!(over.kind(), io::ErrorKind::TimedOut);
        write_by(&mut stream, b"all", Instant::now() + PATIENCE).unwrap();
        drop(stream);
        let mut read = String::new();
        client.read_to_string(&mut read).unwrap();
        assert_eq!(read, "all");
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_an_error_and_not_empty() {
        let folder = std::env::temp_dir().join(format!("ironrail-no-pages-{}", std::process::id()));
        let query = Query { processes: Vec::new(), all_users: false, by: By::Peer, folder };
        let folder = &query.folder;
        let (status, why) = metrics(&query);
        assert!(
            status.starts_with("500 ") && why.contains("reading the pages of counters"),
            "{status}: {why}"
        );
        std::fs::create_dir_all(folder).unwrap();
        let (status, text) = metrics(&query);
        std::fs::remove_dir_all(folder).unwrap();
        assert!(status.starts_with("200 ") && text.contains("# TYPE"), "{status}: {text}");
    }

    #[test]
    fn the_request_line_decides_the_answer() {
        let metrics = Answer::Metrics { head: false };
        assert_eq!(Answer::to(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"), metrics);
        assert_eq!(Answer::to(b"GET / HTTP/1.0\r\n\r\n"), metrics);
        assert_eq!(Answer::to(b"GET /metrics?job=nccl HTTP/1.1\r\n\r\n"), metrics);
        let head = Answer::Metrics { head: true };
        assert_eq!(Answer::to(b"HEAD /metrics HTTP/1.1\r\n\r\n"), head);
        assert_eq!(Answer::to(b"GET /metricsX HTTP/1.1\r\n\r\n"), Answer::NotFound);
        for other in [&b"POST /metrics HTTP/1.1\r\n\r\n"[..], b"GETX /metrics", b"", b"\xff"] {
            assert_eq!(Answer::to(other), Answer::NotAllowed, "{other:?}");
        }
    }
}
