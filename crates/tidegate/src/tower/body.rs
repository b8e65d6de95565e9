//! # Bodies that hold permits
//!
//! A response is not over when its head is there: a slow body is work, and may be most of it. So the permits of a
//! request go with the body, and come back when it has ended, has failed, or was dropped because the client has gone.

use std::pin::Pin;
use std::task::{Context, Poll};

use ::http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::gate::Permits;

pin_project! {
    /// A body with the permits of its request, until it has ended or is dropped.
    #[derive(Debug)]
    pub struct GatedBody<B> {
        #[pin]
        inner: B,
        permits: Option<Permits>,
        is_overload: bool,
    }
}

impl<B> GatedBody<B> {
    /// Of a response with this status, which may say that whoever did the work was overloaded.
    pub(super) fn new(inner: B, permits: Permits, status: StatusCode) -> Self {
        let is_overload = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        GatedBody { inner, permits: Some(permits), is_overload }
    }

    /// With nothing to hold.
    pub(super) fn bare(inner: B) -> Self {
        GatedBody { inner, permits: None, is_overload: false }
    }

    /// The body. The permits are given back.
    pub fn into_inner(self) -> B {
        self.inner
    }
}

impl<B: Default> Default for GatedBody<B> {
    fn default() -> Self {
        GatedBody::bare(B::default())
    }
}

impl<B: Body> Body for GatedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(cx);
        match &frame {
            Poll::Ready(None) => end(this.permits.take(), *this.is_overload),
            Poll::Ready(Some(Err(_))) => drop(this.permits.take()),
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn end(permits: Option<Permits>, is_overload: bool) {
    match permits {
        Some(permits) if is_overload => permits.overloaded(),
        Some(permits) => permits.succeeded(),
        None => {}
    }
}
