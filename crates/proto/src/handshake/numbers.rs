//! The numbers of messages and of their fields on the wire.

// Kinds of messages.
pub(super) const REQUEST: u16 = 1;
pub(super) const REPLY: u16 = 2;
pub(super) const REFUSAL: u16 = 3;
pub(super) const BYE: u16 = 4;
pub(super) const WITHDRAW: u16 = 16;
pub(super) const WITHDRAWN: u16 = 17;
pub(super) const CEASE: u16 = 18;
pub(super) const CEASED: u16 = 19;

// Types of fields. 1 and 2 are the same in every version.
pub(super) const CONNECTION: u16 = 1;
pub(super) const REPLY_TO: u16 = 2;
pub(super) const LISTENER: u16 = 3;
pub(super) const LISTENER_NONCE: u16 = 4;
pub(super) const NONCE: u16 = 5;
pub(super) const CAPABILITIES: u16 = 6;
pub(super) const RAIL: u16 = 7;
pub(super) const RING: u16 = 8;
pub(super) const WINDOW: u16 = 9;
pub(super) const MAX_GROUP_FIELD: u16 = 10;
pub(super) const COMM: u16 = 11;
pub(super) const DATA_PAIRS: u16 = 12;
pub(super) const CONTROL_PAIRS: u16 = 13;
pub(super) const FIN_ONLY: u16 = 14;
pub(super) const REASON: u16 = 15;
pub(super) const TEXT: u16 = 16;
pub(super) const FROM: u16 = 17;
pub(super) const HOST: u16 = 18;
pub(super) const PROCESS: u16 = 19;
pub(super) const PROVIDER: u16 = 20;
pub(super) const LIBFABRIC: u16 = 21;
pub(super) const SETTINGS: u16 = 22;
pub(super) const BEGUN: u16 = 23;
pub(super) const DONE: u16 = 24;
pub(super) const PROVIDER_VERSION: u16 = 26;
pub(super) const EAGER_BYTES: u16 = 27;
pub(super) const EAGER_RING: u16 = 28;
pub(super) const EAGER_END: u16 = 29;
pub(super) const BUNDLE_BYTES: u16 = 30;
pub(super) const BUNDLE_RING: u16 = 31;
