//! What is asked, and what is answered.

use super::Metrics;
use crate::export::MetricsFormat;

/// A request as far as it matters.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Method, path without query, and whether OpenMetrics is understood.
    Request { method: String, path: String, format: MetricsFormat },
    /// No request of HTTP/1.
    Bad,
}

/// An answer: status line, type of the content, content.
#[derive(Debug)]
pub struct Answer {
    pub status: &'static str,
    pub content_type: &'static str,
    pub body: Vec<u8>,
    /// False for a HEAD request, which is told the length alone.
    pub with_body: bool,
}

/// Reads the head of a request.
pub fn parse(head: &[u8]) -> Parsed {
    const MAX_HEADERS: usize = 64;
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    if !matches!(request.parse(head), Ok(httparse::Status::Complete(_))) {
        return Parsed::Bad;
    }
    let (Some(method), Some(target)) = (request.method, request.path) else { return Parsed::Bad };
    let accepts = request
        .headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("accept"))
        .any(|header| memchr::memmem::find(header.value, b"application/openmetrics-text").is_some());
    Parsed::Request {
        method: method.to_owned(),
        path: target.split('?').next().unwrap_or(target).to_owned(),
        format: if accepts { MetricsFormat::OpenMetrics } else { MetricsFormat::Prometheus },
    }
}

/// Answers a request.
pub fn answer(request: &Parsed, metrics: &Metrics) -> Answer {
    let plain = |status, text: &str| Answer {
        status,
        content_type: "text/plain; charset=utf-8",
        body: text.as_bytes().to_vec(),
        with_body: true,
    };
    let Parsed::Request { method, path, format } = request else {
        return plain("400 Bad Request", "not a request of HTTP/1.1\n");
    };
    if method != "GET" && method != "HEAD" {
        return plain("405 Method Not Allowed", "only GET is answered\n");
    }
    let mut answer = match path.as_str() {
        "/metrics" => match metrics(*format) {
            Ok(body) => {
                Answer { status: "200 OK", content_type: format.content_type(), body, with_body: true }
            }
            Err(error) => plain("500 Internal Server Error", &format!("{error}\n")),
        },
        "/" => plain("200 OK", "rdma-probe: metrics for Prometheus are at /metrics\n"),
        _ => plain("404 Not Found", "metrics are at /metrics\n"),
    };
    answer.with_body = method == "GET";
    answer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_format_is_what_the_client_understands() {
        let prometheus = b"GET /metrics?x=1 HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
        let expected = |format| Parsed::Request { method: "GET".into(), path: "/metrics".into(), format };
        assert_eq!(parse(prometheus), expected(MetricsFormat::OpenMetrics));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\n\r\n"), expected(MetricsFormat::Prometheus));
    }

    #[test]
    fn a_head_request_has_no_body_and_a_post_no_answer() {
        let metrics = |_| Ok(b"m".to_vec());
        let asked = |method: &str| Parsed::Request {
            method: method.into(),
            path: "/metrics".into(),
            format: MetricsFormat::Prometheus,
        };
        let head = answer(&asked("HEAD"), &metrics);
        assert_eq!((head.status, head.body.len(), head.with_body), ("200 OK", 1, false));
        assert_eq!(answer(&asked("POST"), &metrics).status, "405 Method Not Allowed");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            answer(&parse(&bytes), &|_| Ok(Vec::new()));
        }
    }
}
