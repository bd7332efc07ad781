package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/allocation"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/podclaims"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// Verdict sums up an explanation.
type Verdict string

// The verdicts.
const (
	Allocated  Verdict = "allocated"
	Fits       Verdict = "fits"
	DoesNotFit Verdict = "does not fit"
	// Undecided: counting finds no reason, and the search for a combination took too long.
	Undecided Verdict = "undecided"
	// Invalid: something that the claims refer to is missing or wrong.
	Invalid Verdict = "invalid"
)

// Explanation is the answer for one pod or claim.
type Explanation struct {
	Subject string  `json:"subject"`
	Verdict Verdict `json:"verdict"`
	// Reason is the decisive one, Change the nearest change with which it fits, as far as known.
	Reason string `json:"reason,omitempty"`
	Change string `json:"change,omitempty"`
	// Devices are what the claims have, or would get.
	Devices []string `json:"devices,omitempty"`
	Nodes   []Node   `json:"nodes,omitempty"`
	// Events are the latest warnings about it.
	Events []string `json:"events,omitempty"`
}

// Node is what one node says.
type Node struct {
	Name     string    `json:"name"`
	Verdict  Verdict   `json:"verdict"`
	Reason   string    `json:"reason,omitempty"`
	Requests []Request `json:"requests,omitempty"`
	// Results are what the claims would get there, in their order.
	Results []resourceapi.AllocationResult `json:"-"`

	problem *problem
	counted counted
}

// Claims are those that Results are for.
func (n Node) Claims() []*resourceapi.ResourceClaim { return n.problem.claims }

// Options bound and refine an explanation.
type Options struct {
	// Search bounds all searches of the allocator together; 0 is half a second. Counting is not part
	// of it.
	Search time.Duration
	// FirstFit leaves out the nodes behind the first that fits.
	FirstFit bool
}

// DefaultSearch leaves room for everything else within a second.
const DefaultSearch = 500 * time.Millisecond

// Explainer answers questions about one state.
type Explainer struct {
	state     *state.State
	nodes     state.ByNode
	options   Options
	match     *matcher
	allocator *allocation.Allocator
}

// New makes an explainer with the allocator of a default scheduler of 1.37.
func New(s *state.State, o Options) *Explainer {
	if o.Search == 0 {
		o.Search = DefaultSearch
	}
	return &Explainer{state: s, nodes: s.ByNode(), options: o, match: newMatcher(), allocator: allocation.New(allocation.Default137())}
}

// Claim explains a claim of the state.
func (e *Explainer) Claim(ctx context.Context, namespace, name string) (Explanation, error) {
	claim, err := e.state.Claim(namespace, name)
	if err != nil {
		return Explanation{}, err
	}
	subject := fmt.Sprintf("claim %s/%s", namespace, name)
	if claim.Status.Allocation != nil {
		return Explanation{Subject: subject, Verdict: Allocated, Devices: results(claim.Status.Allocation), Events: e.events("ResourceClaim", namespace, name)}, nil
	}
	out := e.Claims(ctx, []*resourceapi.ResourceClaim{claim}, e.state.NodeNames())
	out.Subject, out.Events = subject, e.events("ResourceClaim", namespace, name)
	return out, nil
}

// Pod explains a pod of the state with all its claims.
func (e *Explainer) Pod(ctx context.Context, namespace, name string) (Explanation, error) {
	pod, err := e.state.Pod(namespace, name)
	if err != nil {
		return Explanation{}, err
	}
	out := e.PodOf(ctx, pod)
	out.Subject, out.Events = fmt.Sprintf("pod %s/%s", namespace, name), e.events("Pod", namespace, name)
	if out.Verdict == Allocated && pod.Status.Phase == corev1.PodPending && len(out.Events) > 0 {
		out.Reason = fmt.Sprintf("its devices are allocated, but it does not run on node %s: %s", pod.Spec.NodeName, out.Events[0])
	}
	return out, nil
}

// PodOf explains a pod that need not be in the state.
func (e *Explainer) PodOf(ctx context.Context, pod *corev1.Pod) Explanation {
	claims, err := podclaims.Of(e.state, pod)
	switch {
	case err != nil:
		return Explanation{Verdict: Invalid, Reason: err.Error()}
	case len(claims) == 0:
		return Explanation{Verdict: Fits, Reason: "the pod asks for no devices: name a claim in spec.resourceClaims and in the container's resources.claims"}
	}
	if reason := unused(pod); reason != "" {
		return Explanation{Verdict: Invalid, Reason: reason}
	}
	var open []*resourceapi.ResourceClaim
	var devices []string
	for _, c := range claims {
		if c.Status.Allocation == nil {
			open = append(open, c)
			continue
		}
		devices = append(devices, results(c.Status.Allocation)...)
	}
	if len(open) == 0 {
		return Explanation{Verdict: Allocated, Devices: devices}
	}
	nodes, excluded := e.nodesFor(pod, claims)
	out := e.Claims(ctx, open, nodes)
	out.Nodes = append(out.Nodes, excluded...)
	if len(nodes) == 0 && len(excluded) > 0 {
		out.Verdict, out.Reason = DoesNotFit, "no node takes the pod, whatever its devices: "+excluded[0].Reason
	}
	return out
}

// unused finds a claim that no container uses: the pod would hold devices that nobody sees.
func unused(pod *corev1.Pod) string {
	used := map[string]bool{}
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for _, c := range containers {
		for _, claim := range c.Resources.Claims {
			used[claim.Name] = true
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		if !used[c.Name] {
			return fmt.Sprintf("no container names claim %s in resources.claims: the pod would hold devices that no container sees", c.Name)
		}
	}
	return ""
}

// Claims explains claims together on some nodes.
func (e *Explainer) Claims(ctx context.Context, claims []*resourceapi.ResourceClaim, nodes []string) Explanation {
	defaulted := make([]*resourceapi.ResourceClaim, len(claims))
	for i, c := range claims {
		defaulted[i] = allocation.WithDefaults(c)
	}
	searches := &budget{left: e.options.Search}
	var out Explanation
	for _, name := range nodes {
		n, err := e.node(ctx, searches, name, defaulted)
		if err != nil {
			return Explanation{Verdict: Invalid, Reason: err.Error()}
		}
		out.Nodes = append(out.Nodes, n)
		if n.Verdict == Fits && out.Verdict != Fits {
			out.Verdict = Fits
			for i := range n.Results {
				out.Devices = append(out.Devices, results(&n.Results[i])...)
			}
			if e.options.FirstFit {
				break
			}
		}
	}
	if out.Verdict == Fits {
		out.Reason = "the scheduler can give it what it asks for; if it still waits, look at the scheduler's own events"
		return out
	}
	out.sum(ctx)
	return out
}

func (e *Explainer) node(ctx context.Context, searches *budget, name string, claims []*resourceapi.ResourceClaim) (Node, error) {
	p := &problem{state: e.nodes.State(name), node: e.nodes.Node(name), claims: claims, match: e.match, allocator: e.allocator, searches: searches}
	out := Node{Name: name, problem: p}
	c, err := p.count(ctx)
	if err != nil {
		return out, err
	}
	out.counted, out.Requests, out.Reason, out.Verdict = c, c.requests, c.reason, DoesNotFit
	if c.reason != "" {
		return out, nil
	}
	found, results, err := p.search(ctx, c)
	switch {
	case errors.Is(err, errNoTime):
		out.Verdict, out.Reason = Undecided, "counting finds no reason, and the search for a combination was ended; a scheduler gives up after 10 s on each node"
	case err != nil:
		return out, err
	case results == nil:
		out.Reason = found.reason
	default:
		out.Verdict, out.Results = Fits, results
	}
	return out, nil
}

// sum chooses the node that is nearest to a fit, and looks for a change there.
func (x *Explanation) sum(ctx context.Context) {
	x.Verdict = DoesNotFit
	if len(x.Nodes) == 0 {
		x.Reason = "no node publishes devices; `kubectl gpu doctor` looks for the reason"
		return
	}
	best := 0
	for i, n := range x.Nodes {
		if n.Verdict == Undecided {
			x.Verdict = Undecided
		}
		if n.missing() < x.Nodes[best].missing() {
			best = i
		}
	}
	n := x.Nodes[best]
	x.Reason = fmt.Sprintf("node %s: %s", n.Name, n.Reason)
	if change := n.problem.nearest(ctx, n.counted); change != "" {
		x.Change = fmt.Sprintf("%s; then it fits node %s", change, n.Name)
	}
}

// missing is a measure of how far a node is from a fit: later steps are nearer than earlier ones,
// fewer missing devices nearer than more.
func (n Node) missing() int {
	if n.Verdict == Undecided {
		return 0
	}
	const stage = 1000
	order := []StepKind{StepConstraint, StepCounter, StepInUse, StepTaint, StepCapacity, StepSelector, StepClass}
	total := 1
	for _, r := range n.Requests {
		if s := r.decisive(); s != nil {
			total += stage*(1+slices.Index(order, s.Kind)) + r.Want - s.Left + max(0, r.Want-len(r.left))
		}
	}
	return total
}

func results(a *resourceapi.AllocationResult) []string {
	var out []string
	for _, r := range a.Devices.Results {
		out = append(out, fmt.Sprintf("%s/%s", r.Pool, r.Device))
	}
	return out
}

// nodesFor parts the nodes into those that may take the pod and those that may not, with the reason.
func (e *Explainer) nodesFor(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) ([]string, []Node) {
	var open []string
	var excluded []Node
	for _, name := range e.state.NodeNames() {
		if reason := allocation.Refusal(e.nodes.Node(name), pod, claims); reason != "" {
			excluded = append(excluded, Node{Name: name, Verdict: DoesNotFit, Reason: reason})
			continue
		}
		open = append(open, name)
	}
	return open, excluded
}

// events are the latest warnings about an object, newest first.
func (e *Explainer) events(kind, namespace, name string) []string {
	const most = 3
	var found []*corev1.Event
	for _, v := range e.state.Events {
		if v.Type == corev1.EventTypeWarning && v.InvolvedObject.Kind == kind && v.InvolvedObject.Namespace == namespace && v.InvolvedObject.Name == name {
			found = append(found, v)
		}
	}
	slices.SortStableFunc(found, func(a, b *corev1.Event) int { return when(b).Compare(when(a)) })
	var out []string
	for _, v := range found {
		// The same is often said again.
		if text := v.Reason + ": " + v.Message; !slices.Contains(out, text) && len(out) < most {
			out = append(out, text)
		}
	}
	return out
}

func when(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}
