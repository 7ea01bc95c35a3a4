//! Metrics over HTTP, for Prometheus: one request per connection, everything bounded, since a profiler that runs as root
//! answers whoever reaches its port.

mod request;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::export::MetricsFormat;

use request::{Answer, Parsed, answer, parse};

/// Connections served at once; further ones are closed unanswered.
const MAX_CONNECTIONS: usize = 16;
/// Longest request head; Prometheus sends less than 500 bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Time a client has for its request, and then again for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked for the metrics; called from several threads.
pub type Metrics = dyn Fn(MetricsFormat) -> io::Result<Vec<u8>> + Send + Sync;

/// Answers requests on `listener` until the program ends.
///
/// # Errors
/// When the thread for it cannot be made.
pub fn start(listener: TcpListener, metrics: Arc<Metrics>) -> io::Result<()> {
    let busy = Arc::new(AtomicUsize::new(0));
    thread::Builder::new().name("serve".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, most likely: what is being served gives some back.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if busy.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
                busy.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (metrics, guard) = (Arc::clone(&metrics), Busy(Arc::clone(&busy)));
            let spawned = thread::Builder::new().name("serve: client".to_owned()).spawn(move || {
                let _guard = guard;
                // A client that went away needs no answer, and nobody to be told.
                let _ = serve(stream, &*metrics);
            });
            // The guard of a thread that could not be made is dropped with it.
            drop(spawned);
        }
    })?;
    Ok(())
}

/// Counts a connection as long as it lives, however its thread ends.
struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    let head = match read_head(&mut stream)? {
        Some(head) => parse(&head),
        None => Parsed::Bad,
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    let Answer { status, content_type, body, with_body } = answer(&head, metrics);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if with_body {
        stream.write_all(&body)?;
    }
    stream.shutdown(Shutdown::Write)
}

/// The head of a request; `None` where it is too long, cut off, or slower than [`PATIENCE`].
fn read_head(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        // However little comes at a time, the whole must be there by then.
        let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(left))?;
        let n = match stream.read(&mut piece) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&piece[..n]);
        if memchr::memmem::find(&head, b"\r\n\r\n").is_some() {
            return Ok(Some(head));
        }
        if n == 0 || head.len() > MAX_HEAD_BYTES {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        start(listener, Arc::new(|_| Ok(b"metrics\n".to_vec()))).unwrap();
        address
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // What is refused early may be closed before it is sent in full.
        let _ = stream.write_all(request);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn metrics_are_served_and_other_paths_are_not() {
        let address = server();
        let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nmetrics\n"),
            "{answer}"
        );
        assert!(ask(address, b"GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn nonsense_and_endless_heads_are_refused() {
        let address = server();
        assert!(ask(address, b"\x16\x03\x01\r\n\r\n").starts_with("HTTP/1.1 400"));
        let endless = [b"GET / HTTP/1.1\r\nX: ".to_vec(), vec![b'a'; 20 << 10]].concat();
        let answer = ask(address, &endless);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }

    #[test]
    fn clients_that_say_nothing_keep_nobody_else_from_an_answer_for_long() {
        let address = server();
        let silent: Vec<_> = (0..2 * MAX_CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect();
        let began = Instant::now();
        loop {
            if ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200") {
                break;
            }
            assert!(began.elapsed() < 4 * PATIENCE, "no answer");
            thread::sleep(Duration::from_millis(50));
        }
        drop(silent);
    }
}
