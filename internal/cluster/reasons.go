package cluster

// Reasons of problems that sources and the election find.
const (
	ReasonNoFolder          Reason = "NoFolder"
	ReasonNoManifests       Reason = "NoManifests"
	ReasonPassedOver        Reason = "PassedOver"
	ReasonFormerContent     Reason = "FormerContent"
	ReasonInvalidFile       Reason = "InvalidFile"
	ReasonInvalidManifest   Reason = "InvalidManifest"
	ReasonUnknownField      Reason = "UnknownField"
	ReasonUnknownVersion    Reason = "UnknownVersion"
	ReasonInvalidValue      Reason = "InvalidValue"
	ReasonHostBits          Reason = "HostBits" // the value counts all the same
	ReasonInvalidName       Reason = "InvalidName"
	ReasonNameTooLong       Reason = "NameTooLong"
	ReasonInvalidSelector   Reason = "InvalidSelector"
	ReasonInvalidAddress    Reason = "InvalidAddress"
	ReasonNoInternalIP      Reason = "NoInternalIP"
	ReasonDuplicate         Reason = "Duplicate"
	ReasonServiceNotFound   Reason = "ServiceNotFound"
	ReasonNotLoadBalancer   Reason = "NotLoadBalancer"
	ReasonNoIngressIP       Reason = "NoIngressIP"
	ReasonHostnameIngress   Reason = "HostnameIngress"
	ReasonNoEndpoints       Reason = "NoEndpoints"
	ReasonNoEligibleNode    Reason = "NoEligibleNode"
	ReasonHostSilent        Reason = "HostSilent"
	ReasonSharedIngressHost Reason = "SharedIngressHost"
	ReasonNoEgressIP        Reason = "NoEgressIP"
	ReasonTooManyRules      Reason = "TooManyRules"
	ReasonTooManyAddresses  Reason = "TooManyAddresses"
	ReasonEgressIPConflict  Reason = "EgressIPConflict"
	ReasonAddressConflict   Reason = "AddressConflict"
)
