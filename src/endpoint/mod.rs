//! The rails one communicator uses on one device, behind one lock.
