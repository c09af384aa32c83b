package kernel

import (
	"errors"
	"time"
)

// Applier is a part of Apply that metrics and logs distinguish.
type Applier string

// The appliers.
const (
	ApplyRoutes    Applier = "routes" // devices and routes
	ApplyRules     Applier = "rules"
	ApplyTable     Applier = "nftables"
	ApplyAddresses Applier = "addresses" // those of EgressIPs on the link
)

// Appliers returns all values of Applier.
func Appliers() []Applier { return []Applier{ApplyRoutes, ApplyRules, ApplyTable, ApplyAddresses} }

// Step is one applier's work in an Apply.
type Step struct {
	Applier Applier
	Took    time.Duration
	Err     error
}

// joinStep adds a step to an earlier step of the same applier.
func joinStep(all []Step, s Step) []Step {
	for i := range all {
		if all[i].Applier == s.Applier {
			all[i].Took += s.Took
			all[i].Err = errors.Join(all[i].Err, s.Err)
			return all
		}
	}
	return append(all, s)
}

// Drift is a kind of object that others remove or change.
type Drift string

// The kinds of drift.
const (
	DriftRule      Drift = "rule"
	DriftRoutes    Drift = "routes" // of one table
	DriftVRF       Drift = "vrf"
	DriftVLAN      Drift = "vlan"
	DriftInterface Drift = "interface" // of a VRF device
	DriftTunnel    Drift = "tunnel"
	DriftTable     Drift = "nftables"
	DriftAddress   Drift = "address" // of an EgressIP on the link
)

// Drifts returns all kinds of Drift.
func Drifts() []Drift {
	return []Drift{DriftRule, DriftRoutes, DriftVRF, DriftVLAN, DriftInterface, DriftTunnel, DriftTable, DriftAddress}
}
