//! The calls the probes watch, as numbers that fit a byte.

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// A watched call. One number per purpose, whichever entry point the program used; 0 is "none" on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the names are the verbs' own")]
        pub enum CallId {
            $($(#[$doc])* $name = $number),*
        }

        impl CallId {
            /// Every call, in the order of their numbers.
            pub const ALL: &'static [CallId] = &[$(CallId::$name),*];

            /// The call with this number; `None` for 0 and for numbers of a newer version.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

calls! {
    RegMr = 1,
    RegDmabufMr = 2,
    ReregMr = 3,
    DeregMr = 4,
    CreateQp = 5,
    DestroyQp = 6,
    ModifyQp = 7,
    CreateCq = 8,
    ResizeCq = 9,
    DestroyCq = 10,
    CreateSrq = 11,
    DestroySrq = 12,
    AllocPd = 13,
    DeallocPd = 14,
    CreateCompChannel = 15,
    DestroyCompChannel = 16,
    OpenDevice = 17,
    CloseDevice = 18,
    GetCqEvent = 19,
    AckCqEvents = 20,
    GetAsyncEvent = 21,
    CmResolveAddr = 22,
    CmResolveRoute = 23,
    CmConnect = 24,
    CmAccept = 25,
    CmReject = 26,
    CmDisconnect = 27,
    CmGetEvent = 28,
    KernelPin = 29,
    KernelUnpin = 30,
    KernelRegMr = 31,
    KernelDeregMr = 32,
    KernelCreateQp = 33,
    KernelDestroyQp = 34,
    KernelModifyQp = 35,
    KernelCreateCq = 36,
    KernelDestroyCq = 37,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_found_again_by_its_number() {
        for (index, call) in CallId::ALL.iter().enumerate() {
            assert_eq!(*call as usize, index + 1);
            assert_eq!(CallId::from_number(*call as u8), Some(*call));
        }
        assert_eq!(CallId::from_number(0), None);
        assert_eq!(CallId::from_number(255), None);
    }
}
