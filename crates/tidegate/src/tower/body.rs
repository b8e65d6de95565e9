//! # Bodies that hold permits
//!
//! A response is not finished when its head is ready: a slow body is work, and may be most of it. So the permits of a
//! request stay with the body. They are released when the body has ended, has failed, or was dropped because the client
//! has disconnected.
//!
//! A server asks a body whether it has ended, and if so drops it without polling it again; so a body that was dropped
//! may well have ended. A limit that adapts to how requests end must tell the two cases apart.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use ::http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::gate::Permits;

pin_project! {
    /// A body that holds the permits of its request until it has ended or is dropped.
    #[derive(Debug)]
    pub struct PermitBody<B> {
        #[pin]
        inner: B,
        held: Held,
    }
}

/// The permits of a request, and how its work has ended when they are released.
#[derive(Debug)]
struct Held {
    permits: Option<Permits>,
    status: StatusCode,
    /// Atomic, because `is_end_stream` sets it through a shared reference.
    has_ended: AtomicBool,
}

impl<B> PermitBody<B> {
    /// Holds the permits of a response with this status, which may report an overload.
    pub(super) fn new(inner: B, permits: Permits, status: StatusCode) -> Self {
        PermitBody { inner, held: Held::new(Some(permits), status) }
    }

    /// Holds no permits.
    pub(super) fn without_permit(inner: B) -> Self {
        PermitBody { inner, held: Held::new(None, StatusCode::OK) }
    }

    /// Returns the body, and releases the permits.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

impl<B: Default> Default for PermitBody<B> {
    fn default() -> Self {
        PermitBody::without_permit(B::default())
    }
}

impl<B: Body> Body for PermitBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = this.inner.as_mut().poll_frame(cx);
        match &frame {
            Poll::Ready(None) => this.held.give_back(true),
            Poll::Ready(Some(Err(_))) => this.held.give_back(false),
            Poll::Ready(Some(Ok(_))) => this.held.note(this.inner.is_end_stream()),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.inner.is_end_stream();
        self.held.note(has_ended);
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Held {
    fn new(permits: Option<Permits>, status: StatusCode) -> Self {
        Held { permits, status, has_ended: AtomicBool::new(false) }
    }

    /// Notes that nothing more is to be sent.
    ///
    /// The permits are held until everything has been sent.
    fn note(&self, has_ended: bool) {
        if has_ended {
            self.has_ended.store(true, Ordering::Relaxed);
        }
    }

    fn give_back(&mut self, has_ended: bool) {
        match self.permits.take() {
            Some(permits) if has_ended => end(permits, self.status),
            permits => drop(permits),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let has_ended = *self.has_ended.get_mut();
        self.give_back(has_ended);
    }
}

/// Releases the permits of finished work; a status of 429 or 503 reports an overload.
pub(super) fn end(permits: Permits, status: StatusCode) {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => permits.overloaded(),
        _ => permits.succeeded(),
    }
}
