//! The objects that a user opens: domains, endpoints, completion queues, address vectors and regions, and the order in which they close.

mod domain;
mod endpoint;
mod queue;
mod region;
mod vector;

pub(crate) use domain::{Domain, DomainAsked, Fabric};
pub(crate) use endpoint::{Endpoint, EndpointAsked};
pub(crate) use queue::Queue;
pub(crate) use region::Region;
pub(crate) use vector::Vector;
