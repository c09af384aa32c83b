package chaos

import "time"

const (
	// repaired is how long the removal of something from a node's kernel by another program may be felt.
	repaired = 500 * time.Millisecond
	// rivalry is how long a rival takes it again and again.
	rivalry = 3 * time.Second
)

// How long a fault may be felt until others replace a node: as long as a BGP session lasts in silence, which is 9 s in
// this lab, and the time of an election.
const (
	failover = 15 * time.Second
	returned = 12 * time.Second // after a node is back, until its sessions are
	inForce  = 5 * time.Second  // a change, once the nodes concerned can learn it
)

// limits bounds the effects of each kind of fault. One that is not listed may have none.
var limits = map[string]Limit{
	"agent killed in a change": {Change: inForce},

	"speaker killed":           {Down: returned, Breaks: true},
	"agent and speaker killed": {Down: returned, Back: returned, Breaks: true},

	"nft flush ruleset":       {Down: repaired},
	"rules deleted":           {Down: repaired, Breaks: true},
	"learned routes flushed":  {Down: repaired},
	"steering routes flushed": {Down: repaired},
	"rival deletes a rule":    {Down: rivalry + repaired, Back: repaired, Breaks: true},
	"VRF deleted":             {Down: failover, Back: returned, Breaks: true},
	"uplink renamed":          {Down: failover, Back: returned, Breaks: true},
	"uplink without address":  {Down: failover, Back: returned, Breaks: true},

	"node frozen":                          {Down: failover, Back: returned, Breaks: true},
	"uplink cut":                           {Down: failover, Back: returned, Breaks: true},
	"split from routers":                   {Down: failover, Back: returned, Breaks: true},
	"split from nodes":                     {Down: failover, Back: returned, Breaks: true},
	"split from API and routers":           {Down: failover, Back: returned, Breaks: true},
	"split from API and nodes":             {Down: failover, Back: returned, Breaks: true},
	"split from routers and nodes":         {Down: failover, Back: returned, Breaks: true},
	"split from API and routers and nodes": {Down: failover, Back: returned, Breaks: true},
	"session reset":                        {Down: returned, Breaks: true},
	"bgpd killed":                          {Back: returned, Breaks: true},
	"router silent":                        {Down: failover, Back: returned, Breaks: true},

	"API server killed":      {Change: inForce},
	"API server frozen":      {Change: inForce},
	"API server unreachable": {Change: inForce},
	"host selected":          {Breaks: true},
	"node drained":           {Breaks: true},
	"node cordoned":          {Breaks: true},
	"node not Ready":         {Down: 2 * time.Second, Back: 2 * time.Second, Breaks: true},
}
