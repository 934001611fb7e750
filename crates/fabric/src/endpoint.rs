//! An endpoint: where operations are posted and peers' operations arrive. fi_endpoint(3).

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::address::AddressVector;
use crate::domain::Domain;
use crate::error::{FabricError, check};
use crate::handle::Handle;
use crate::info::Info;
use crate::kind::RailKind;
use crate::options::{EndpointOption, OptionName, OptionValue};
use crate::posts::{Posts, Tallies};
use crate::queue::CompletionQueue;
use crate::scope::Scope;

/// An enabled endpoint of one rail. Every operation completes in its queue, but for injected ones.
///
/// Calls on it and on everything else of its domain are serialised by the owner's lock (FI_THREAD_DOMAIN).
#[derive(Debug)]
pub struct Endpoint<K: RailKind> {
    handle: Handle<sys::fid_ep>, // Closes before anything below is released: keep it first.
    queue: Arc<CompletionQueue>,
    addresses: Arc<AddressVector>,
    domain: Arc<Domain>,
    scope: Scope,
    inject_bytes: usize,
    tallies: Tallies,
    kind: PhantomData<K>,
}

impl<K: RailKind> Endpoint<K> {
    /// Opens an endpoint, binds queue and address vector to it, and enables it.
    ///
    /// # Errors
    ///
    /// What the first failing call of fi_endpoint(3) returned.
    pub fn open(
        domain: &Arc<Domain>,
        info: &Info,
        queue: &Arc<CompletionQueue>,
        addresses: &Arc<AddressVector>,
    ) -> Result<Arc<Self>, FabricError> {
        Self::open_with(domain, info, queue, addresses, &[])
    }

    /// As [`Endpoint::open`], with `options` set before it is enabled.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::open`]; what fi_setopt returned for a required option.
    pub fn open_with(
        domain: &Arc<Domain>,
        info: &Info,
        queue: &Arc<CompletionQueue>,
        addresses: &Arc<AddressVector>,
        options: &[EndpointOption],
    ) -> Result<Arc<Self>, FabricError> {
        let open = |out| {
            // SAFETY: the domain is open, the library only reads `info`, and `out` is a valid place.
            unsafe { sys::fi_endpoint(domain.as_ptr(), info.as_ptr(), out, ptr::null_mut()) }
        };
        let mut endpoint = Self {
            // SAFETY: fi_endpoint gives us an endpoint of our own.
            handle: unsafe { Handle::open("fi_endpoint", open) }?,
            queue: Arc::clone(queue),
            addresses: Arc::clone(addresses),
            domain: Arc::clone(domain),
            scope: if domain.region_mode().bind_to_endpoint {
                Scope::new()
            } else {
                domain.scope()
            },
            inject_bytes: info.inject_bytes(),
            tallies: Tallies::new(),
            kind: PhantomData,
        };
        endpoint.bind(queue.as_ptr().cast(), sys::FI_TRANSMIT | sys::FI_RECV)?;
        endpoint.bind(addresses.as_ptr().cast(), 0)?;
        for option in options {
            endpoint.set(option)?;
        }
        let enabled = match endpoint.enable() {
            // shm names its memory by process, and a killed one leaves it behind. The next process of that number is refused
            // once, for it takes itself for the owner, and what was left is cleared away meanwhile.
            Err(FabricError { code, .. }) if code == -sys::FI_EBUSY => endpoint.enable(),
            enabled => enabled,
        };
        enabled?;
        if let Some(OptionValue::Size(bytes)) =
            endpoint.option(OptionName::InjectRmaSize, OptionValue::Size(0))?
        {
            endpoint.inject_bytes = endpoint.inject_bytes.min(bytes);
        }
        Ok(Arc::new(endpoint))
    }

    /// The address that peers reach it by: for their address vector, over the wire.
    ///
    /// # Errors
    ///
    /// What fi_getname (fi_cm(3)) returned.
    pub fn name(&self) -> Result<Vec<u8>, FabricError> {
        let mut name = vec![0; NAME_BYTES];
        for _ in 0..2 {
            let mut len = name.len();
            // SAFETY: the endpoint is open, and the buffer is as long as we say.
            let code =
                unsafe { sys::fi_getname(self.as_ptr(), name.as_mut_ptr().cast(), &raw mut len) };
            if code == -sys::FI_ETOOSMALL && len > name.len() && len <= NAME_BYTES_MAX {
                name.resize(len, 0);
                continue;
            }
            check("fi_getname", code)?;
            name.truncate(len);
            return Ok(name);
        }
        Err(FabricError::new("fi_getname", sys::FI_ETOOSMALL))
    }

    /// Reads an option; none where the library or the provider does not know it. The value has the type of `like`.
    ///
    /// # Errors
    ///
    /// What fi_getopt returned, but for "no such option".
    pub fn option(
        &self,
        name: OptionName,
        like: OptionValue,
    ) -> Result<Option<OptionValue>, FabricError> {
        let Some(number) = self.option_number(name) else { return Ok(None) };
        match like {
            OptionValue::Flag(_) => {
                Ok(self.get::<u8>(number)?.map(|value| OptionValue::Flag(value != 0)))
            }
            OptionValue::Size(_) => Ok(self.get::<usize>(number)?.map(OptionValue::Size)),
        }
    }

    /// The most bytes of an injected write. Longer ones are refused here: providers copy into places of that size, and not all
    /// check.
    #[inline]
    pub fn inject_bytes(&self) -> usize {
        self.inject_bytes
    }

    /// How many posts on it libfabric has accepted so far.
    pub fn posts(&self) -> Posts {
        self.tallies.posts()
    }

    /// The domain it belongs to.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The queue that its operations complete in.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// The peers it can name.
    pub fn addresses(&self) -> &Arc<AddressVector> {
        &self.addresses
    }

    /// Closes it now, and says how that went; dropping the last share logs instead. Operations outstanding on it end without a
    /// completion, and after a success nothing of theirs can touch memory.
    ///
    /// # Errors
    ///
    /// What fi_close returned; the endpoint then leaks. -FI_EBUSY while anyone else, such as a region bound to it, has a share;
    /// the last share then closes it.
    pub fn close(self: Arc<Self>) -> Result<(), FabricError> {
        let mut endpoint =
            Arc::into_inner(self).ok_or_else(|| FabricError::new("fi_close", sys::FI_EBUSY))?;
        endpoint.handle.close()
    }

    fn enable(&self) -> Result<(), FabricError> {
        // SAFETY: the endpoint is open, and what it needs is bound.
        check("fi_enable", unsafe { sys::fi_enable(self.as_ptr()) })
    }

    fn bind(&self, object: *mut sys::fid, flags: u64) -> Result<(), FabricError> {
        // SAFETY: we own the endpoint, and hold a share of the object; both are of one domain or libfabric refuses.
        check("fi_ep_bind", unsafe { sys::fi_ep_bind(self.as_ptr(), object, flags) })
    }

    fn set(&self, option: &EndpointOption) -> Result<(), FabricError> {
        let unknown = FabricError::new("fi_setopt", sys::FI_ENOPROTOOPT);
        let outcome = match self.option_number(option.name) {
            None => Err(unknown),
            Some(number) => match option.value {
                OptionValue::Flag(value) => self.set_raw(number, &u8::from(value)),
                OptionValue::Size(value) => self.set_raw(number, &value),
            },
        };
        match outcome {
            Err(error) if !option.required => {
                log::debug!("option {:?} is left alone: {error}", option.name);
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn set_raw<T>(&self, number: i32, value: &T) -> Result<(), FabricError> {
        let value: *const c_void = ptr::from_ref(value).cast();
        let level = sys::FI_OPT_ENDPOINT.cast_signed();
        // SAFETY: the endpoint is open, and the value is as long as we say.
        check("fi_setopt", unsafe {
            sys::fi_setopt(self.as_ptr(), level, number, value, size_of::<T>())
        })
    }

    fn get<T: Default>(&self, number: i32) -> Result<Option<T>, FabricError> {
        let mut value = T::default();
        let mut len = size_of::<T>();
        let level = sys::FI_OPT_ENDPOINT.cast_signed();
        // SAFETY: the endpoint is open, and the place is as long as we say.
        let code = unsafe {
            sys::fi_getopt(self.as_ptr(), level, number, (&raw mut value).cast(), &raw mut len)
        };
        match -code {
            sys::FI_ENOPROTOOPT | sys::FI_EOPNOTSUPP | sys::FI_ENOSYS | sys::FI_EINVAL => Ok(None),
            _ => check("fi_getopt", code).map(|()| Some(value)),
        }
    }

    /// An option's number, if the loaded release has it.
    fn option_number(&self, name: OptionName) -> Option<i32> {
        let (number, since) = name.number();
        (self.domain.fabric().library().version() >= since).then_some(number)
    }

    #[inline(always)]
    pub(crate) fn tallies(&self) -> &Tallies {
        &self.tallies
    }

    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut sys::fid_ep {
        self.handle.as_ptr()
    }
}

/// Long enough for every provider's addresses; one that says it needs more is believed once, within reason.
const NAME_BYTES: usize = 256;
const NAME_BYTES_MAX: usize = 4096;
