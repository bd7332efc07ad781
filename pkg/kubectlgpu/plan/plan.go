// Package plan says what claims would get, in their order, and what would be left: a dry run of the
// scheduler's choice of devices. It is for the command plan. It is pure.
package plan

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpu-dra/driver/pkg/kubectlgpu/explain"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/manifest"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/output"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/view"
	"github.com/gpu-dra/driver/pkg/linkcost"
)

// Plan is what became of each subject.
type Plan struct {
	Items []Item `json:"items"`
	// Before and After are what the cluster has free.
	Before view.Totals `json:"before"`
	After  view.Totals `json:"after"`
}

// Item is what one pod or claim would get.
type Item struct {
	explain.Explanation `json:",inline"`
	Node                string   `json:"node,omitempty"`
	Choices             []Choice `json:"choices,omitempty"`
	// LinkCost is what an exchange among its GPUs costs; see package linkcost. It is 0 for fewer
	// than two.
	LinkCost int `json:"linkCost,omitempty"`
	// LeastCost is that of as many GPUs in one NVLink domain.
	LeastCost int `json:"leastLinkCost,omitempty"`
}

// Choice is one device that a request would get.
type Choice struct {
	Claim   string `json:"claim"`
	Request string `json:"request"`
	Device  string `json:"device"`
	Product string `json:"product,omitempty"`
	Profile string `json:"profile,omitempty"`
	Domain  string `json:"nvlinkDomain,omitempty"`
}

// work is a pod or claim to plan.
type work struct {
	subject string
	claims  []*resourceapi.ResourceClaim
	pod     *corev1.Pod
}

// Make plans the pods and claims among some objects, and the pods of workloads, one after the
// other, each so many times. Classes and templates among the objects are used, too.
func Make(ctx context.Context, s *state.State, driver string, objects []runtime.Object, copies int, options explain.Options) (Plan, error) {
	cluster := *s
	for _, o := range objects {
		switch o.(type) {
		case *resourceapi.DeviceClass, *resourceapi.ResourceClaimTemplate:
			if err := cluster.Add(o); err != nil {
				return Plan{}, err
			}
		}
	}
	todo := gather(objects, &cluster, copies)
	if len(todo) == 0 {
		return Plan{}, fmt.Errorf("nothing to plan: the files have no pod, workload, ResourceClaim or ResourceClaimTemplate")
	}
	out := Plan{Before: view.Show(s, driver, nil).Totals}
	// Of a claim that fits the first node is told, and nothing of the others.
	options.FirstFit = true
	for _, w := range todo {
		out.Items = append(out.Items, one(ctx, &cluster, w, options))
	}
	out.After = view.Show(&cluster, driver, nil).Totals
	return out, nil
}

// gather lists what is to be planned. A claim or template that a pod of the files names is planned
// with the pod.
func gather(objects []runtime.Object, cluster *state.State, copies int) []work {
	var out []work
	named := map[string]bool{}
	for _, o := range objects {
		for _, pod := range manifest.PodsOf(o) {
			for _, c := range pod.Spec.ResourceClaims {
				for _, name := range []*string{c.ResourceClaimName, c.ResourceClaimTemplateName} {
					if name != nil {
						named[*name] = true
					}
				}
			}
			for i := range pod.Replicas * copies {
				p := &corev1.Pod{ObjectMeta: *pod.Meta.DeepCopy(), Spec: *pod.Spec.DeepCopy()}
				p.Namespace = pod.Namespace
				p.Name = fmt.Sprintf("%s-%d", strings.ToLower(strings.ReplaceAll(pod.Subject, " ", "-")), i)
				out = append(out, work{subject: numbered(pod.Subject, i, pod.Replicas*copies), pod: p})
			}
		}
	}
	for _, o := range objects {
		switch c := o.(type) {
		case *resourceapi.ResourceClaim:
			if named[c.Name] {
				cluster.Claims = append(slices.Clone(cluster.Claims), c)
				continue
			}
			out = append(out, claims("ResourceClaim", c.ObjectMeta, c.Spec, copies)...)
		case *resourceapi.ResourceClaimTemplate:
			if !named[c.Name] {
				out = append(out, claims("ResourceClaimTemplate", c.ObjectMeta, c.Spec.Spec, copies)...)
			}
		}
	}
	return out
}

func claims(kind string, meta metav1.ObjectMeta, spec resourceapi.ResourceClaimSpec, copies int) []work {
	var out []work
	for i := range copies {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: meta.Namespace, Name: fmt.Sprintf("%s-%d", meta.Name, i)}, Spec: *spec.DeepCopy()}
		out = append(out, work{subject: numbered(kind+" "+meta.Name, i, copies), claims: []*resourceapi.ResourceClaim{c}})
	}
	return out
}

func numbered(subject string, i, of int) string {
	if of == 1 {
		return subject
	}
	return fmt.Sprintf("%s (%d of %d)", subject, i+1, of)
}

// one plans one subject and has it hold what it gets.
func one(ctx context.Context, cluster *state.State, w work, options explain.Options) Item {
	e := explain.New(cluster, options)
	var x explain.Explanation
	if w.pod != nil {
		x = e.PodOf(ctx, w.pod)
	} else {
		x = e.Claims(ctx, w.claims, cluster.NodeNames())
	}
	x.Subject = w.subject
	item := Item{Explanation: x}
	if x.Verdict != explain.Fits {
		return item
	}
	at := slices.IndexFunc(x.Nodes, func(n explain.Node) bool { return n.Verdict == explain.Fits })
	if at < 0 {
		return item
	}
	node := x.Nodes[at]
	item.Node, item.Explanation.Reason = node.Name, ""
	devices := map[state.ID]state.Device{}
	for _, d := range cluster.Devices() {
		devices[d.ID] = d
	}
	var domains []string
	for i, result := range node.Results {
		claim := node.Claims()[i].DeepCopy()
		claim.Status.Allocation = &result
		for _, r := range result.Devices.Results {
			d := devices[state.ID{Driver: r.Driver, Pool: r.Pool, Name: r.Device}]
			item.Choices = append(item.Choices, Choice{
				Claim: claim.Name, Request: r.Request, Device: r.Device, Product: d.Text("productName"), Profile: d.Text("profile"), Domain: d.Text("nvlinkDomain"),
			})
			if d.Kind() == "gpu" {
				domains = append(domains, d.Text("nvlinkDomain"))
			}
		}
		cluster.Claims = append(slices.DeleteFunc(slices.Clone(cluster.Claims), func(c *resourceapi.ResourceClaim) bool {
			return c.Namespace == claim.Namespace && c.Name == claim.Name
		}), claim)
	}
	if n := len(domains); n > 1 {
		item.LinkCost, item.LeastCost = linkcost.Sum(domains), linkcost.Inside*n*(n-1)/2
	}
	return item
}

// Kind names the object.
func (Plan) Kind() string { return "Plan" }

// Text writes what each subject gets, why others do not fit, and what is left.
func (p Plan) Text(out io.Writer, wide bool) error {
	w := output.NewWriter(out)
	for _, i := range p.Items {
		if i.Verdict != explain.Fits {
			w.Printf("%s: %s\n  %s\n", i.Subject, i.Verdict, i.Reason)
			if i.Change != "" {
				w.Printf("  Change: %s\n", i.Change)
			}
			continue
		}
		w.Printf("%s: fits node %s\n", i.Subject, i.Node)
		for _, c := range i.Choices {
			w.Printf("  %s  %s\n", c.Request, c.words(wide))
		}
		if i.LinkCost > 0 {
			w.Printf("  link cost %d", i.LinkCost)
			if i.LinkCost == i.LeastCost {
				w.Printf(": every two share an NVLink domain\n")
			} else {
				w.Printf("; %d with all in one NVLink domain: add matchAttribute gpu.nvidia.com/nvlinkDomain\n", i.LeastCost)
			}
		}
	}
	w.Printf("\n%-40s %8s %8s\n", "", "before", "after")
	row := func(what string, before, after int) { w.Printf("%-40s %8d %8d\n", what, before, after) }
	row("free GPUs", p.Before.Free, p.After.Free)
	for i := range p.Before.Domains {
		row(fmt.Sprintf("claims for %d GPUs of one NVLink domain", p.Before.Domains[i].Size), p.Before.Domains[i].Claims, p.After.Domains[i].Claims)
	}
	if p.Before.Largest != nil {
		after := "none"
		if p.After.Largest != nil {
			after = p.After.Largest.Profile
		}
		w.Printf("%-40s %8s %8s\n", "largest free partition", p.Before.Largest.Profile, after)
	}
	return w.Err
}

func (c Choice) words(wide bool) string {
	words := []string{c.Device}
	for _, more := range []string{c.Product, c.Profile} {
		if more != "" {
			words = append(words, more)
		}
	}
	if c.Domain != "" {
		domain := c.Domain
		const short = 12
		if !wide && len(domain) > short {
			domain = domain[:short]
		}
		words = append(words, "NVLink domain "+domain)
	}
	return strings.Join(words, "  ")
}
