package plan

import "github.com/egressway/egressway/internal/cluster"

// Reasons of problems that planning finds.
const (
	ReasonPathsExhausted    cluster.Reason = "PathsExhausted"
	ReasonVRFMissing        cluster.Reason = "VRFMissing"
	ReasonInterfaceMissing  cluster.Reason = "InterfaceMissing"
	ReasonTableMismatch     cluster.Reason = "TableMismatch"
	ReasonNetworkNotFound   cluster.Reason = "NetworkNotFound"
	ReasonNetworkNotAllowed cluster.Reason = "NetworkNotAllowed"
	ReasonInvalidAddress    cluster.Reason = "InvalidAddress"
	ReasonIngressConflict   cluster.Reason = "IngressConflict"
	ReasonForeignEndpoint   cluster.Reason = "ForeignEndpoint"
	ReasonEndpointConflict  cluster.Reason = "EndpointConflict"
	ReasonUnknownNode       cluster.Reason = "UnknownNode"
	ReasonOutsidePodRanges  cluster.Reason = "OutsidePodRanges"
	ReasonNoRoute           cluster.Reason = "NoRoute"
	ReasonHostUnreachable   cluster.Reason = "HostUnreachable"
	ReasonNoRouterID        cluster.Reason = "NoRouterID"
)
