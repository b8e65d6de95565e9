//! # To come
