package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/journal"
)

// Standing is what the API server says of the claim that a record is about.
type Standing int

// The standings.
const (
	// Unknown: there is no answer, and nothing follows from that.
	Unknown Standing = iota
	// Current: the claim is there and has devices of this node.
	Current
	// Deleted: there is no claim of that name.
	Deleted
	// Replaced: the claim of that name is another one.
	Replaced
	// Released: the claim is there and has no device of this node.
	Released
)

func (s Standing) String() string {
	switch s {
	case Current:
		return "it is allocated to this node"
	case Deleted:
		return "it does not exist any more"
	case Replaced:
		return "another claim has its name"
	case Released:
		return "it is not allocated to this node any more"
	}
	return "the API server did not answer"
}

// Orphan tells whether the claim has surely nothing to do with this node any more.
func (s Standing) Orphan() bool { return s == Deleted || s == Replaced || s == Released }

// Use is what is known of programs that have a claim's devices open.
type Use struct {
	// By describes the programs, for people.
	By []string
	// Err is why it is not known whether there are any.
	Err error
}

// Observation is what one look saw.
type Observation struct {
	Records []*journal.Record
	// Standings by claim; one that is missing is Unknown.
	Standings map[types.UID]Standing
	// Since is when each orphan was first seen as one.
	Since map[types.UID]time.Time
	// Uses of the orphans' devices.
	Uses map[types.UID]Use
	Now  time.Time
	// Grace is how long an orphan is left to the kubelet, which tears a pod down after its claim
	// may be gone already.
	Grace time.Duration
}

// Action is what to do about a record.
type Action string

// The actions.
const (
	// Keep: the record has its claim, or nobody knows.
	Keep Action = "keep"
	// Wait: the claim is gone, and the kubelet may still see to it.
	Wait Action = "wait"
	// InUse: the claim is gone, and a program has its device open.
	InUse Action = "in use"
	// Undo: nobody owns it.
	Undo Action = "undo"
)

// Verdict is what to do about one record, and why.
type Verdict struct {
	Claim  claims.Ref
	Action Action
	Reason string
}

// Decide gives a verdict on each record, in their order.
func Decide(o Observation) []Verdict {
	verdicts := make([]Verdict, 0, len(o.Records))
	for _, r := range o.Records {
		action, reason := decide(o, r)
		verdicts = append(verdicts, Verdict{Claim: refOf(r), Action: action, Reason: reason})
	}
	return verdicts
}

func decide(o Observation, r *journal.Record) (Action, string) {
	standing := o.Standings[r.UID]
	if !standing.Orphan() {
		return Keep, standing.String()
	}
	since, seen := o.Since[r.UID]
	if !seen {
		since = o.Now
	}
	use := o.Uses[r.UID]
	switch left := o.Grace - o.Now.Sub(since); {
	case left > 0:
		return Wait, fmt.Sprintf("%s; the kubelet has %s more to unprepare it", standing, left.Round(time.Second))
	case use.Err != nil:
		return InUse, fmt.Sprintf("%s, but whether its devices are in use is not known: %v", standing, use.Err)
	case len(use.By) > 0:
		return InUse, fmt.Sprintf("%s, but its devices are in use by %s", standing, strings.Join(slices.Sorted(slices.Values(use.By)), ", "))
	}
	return Undo, standing.String()
}

func refOf(r *journal.Record) claims.Ref {
	return claims.Ref{Namespace: r.Namespace, Name: r.Name, UID: r.UID}
}
