// Package doctor checks the chain from the GPU driver to a pod that sees its GPU, and says how to
// mend what is broken. It is for the command doctor. What it looks at is given to it: the state of
// a cluster, and the directories of one node.
package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpu-dra/driver/pkg/conflict"
	"github.com/gpu-dra/driver/pkg/conflict/look"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/finding"
	"github.com/gpu-dra/driver/pkg/kubectlgpu/state"
)

// Cluster is what is looked at.
type Cluster struct {
	State *state.State
	// Driver is the DRA driver's name.
	Driver string
}

// pluginLabel is what the chart names the plugin's pods by.
const (
	pluginLabel     = "app.kubernetes.io/name"
	pluginName      = "gpu-dra-driver"
	componentLabel  = "app.kubernetes.io/component"
	pluginComponent = "kubelet-plugin"
)

// Check looks at everything.
func Check(ctx context.Context, c Cluster) finding.Report {
	r := finding.Report{Of: "DoctorReport"}
	for _, look := range []func(context.Context, Cluster, *finding.Report){read, versions, features, plugins, pools, classes, rivals, twins, taints, lost} {
		look(ctx, c, &r)
	}
	return r
}

func fine(r *finding.Report, subject, check, message string) {
	r.Add(finding.Finding{Subject: subject, Check: check, Severity: finding.OK, Message: message})
}

func (c Cluster) slices() []*resourceapi.ResourceSlice {
	return slices.DeleteFunc(slices.Clone(c.State.Newest()), func(s *resourceapi.ResourceSlice) bool { return s.Spec.Driver != c.Driver })
}

// read tells of what could not be read: the checks below know nothing of it.
func read(_ context.Context, c Cluster, r *finding.Report) {
	for _, u := range c.State.Unread {
		r.Add(finding.Finding{
			Subject: "cluster", Check: "access", Severity: finding.Warning, Message: u.String(),
			Why: "what depends on it is not checked", Fix: "run as a user who may list it in all namespaces",
		})
	}
}

// versions checks that the nodes' kubelets know the API.
func versions(_ context.Context, c Cluster, r *finding.Report) {
	least := version.MustParseGeneric("1.34.0")
	for _, n := range c.State.Nodes {
		have, err := version.ParseGeneric(n.Status.NodeInfo.KubeletVersion)
		switch {
		case n.Status.NodeInfo.KubeletVersion == "":
		case err == nil && have.LessThan(least):
			r.Add(finding.Finding{
				Subject: "node " + n.Name, Check: "version", Severity: finding.Error, Message: "kubelet " + n.Status.NodeInfo.KubeletVersion,
				Why: "resource.k8s.io/v1 is served and used since 1.34", Fix: "upgrade the node",
			})
		default:
			fine(r, "node "+n.Name, "version", "kubelet "+n.Status.NodeInfo.KubeletVersion)
		}
	}
}

// plugins checks the plugin's pods and what their nodes publish.
func plugins(_ context.Context, c Cluster, r *finding.Report) {
	published := map[string]int{}
	for _, s := range c.slices() {
		published[ptr.Deref(s.Spec.NodeName, "")] += 1 + len(s.Spec.Devices)
	}
	seen := map[string]bool{}
	for _, p := range c.State.Pods {
		if !isPlugin(p) || p.Spec.NodeName == "" {
			continue
		}
		node := p.Spec.NodeName
		seen[node] = true
		subject := "node " + node
		switch count := published[node]; {
		case !ready(p):
			r.Add(finding.Finding{
				Subject: subject, Check: "plugin", Severity: finding.Error, Message: fmt.Sprintf("pod %s/%s is not ready%s", p.Namespace, p.Name, because(p)),
				Why: "without the plugin claims on this node are not prepared", Fix: fmt.Sprintf("kubectl logs -n %s %s; readiness says which link of the chain is missing (docs/troubleshooting.md)", p.Namespace, p.Name),
			})
		case count == 0:
			r.Add(finding.Finding{
				Subject: subject, Check: "slices", Severity: finding.Error, Message: "the plugin is ready, but the node has no ResourceSlice of " + c.Driver,
				Why: "the scheduler knows no GPU there", Fix: "look for refused slices in the plugin's log, and for another driver of this name; is the plugin registered with the kubelet?",
			})
		case count == 1:
			r.Add(finding.Finding{
				Subject: subject, Check: "driver", Severity: finding.Error, Message: "the node publishes no device",
				Why: "the plugin found no GPU driver, or all GPUs are left out", Fix: fmt.Sprintf("kubectl get events --field-selector involvedObject.name=%s; is the GPU driver installed, and is its root the plugin's --driver-root?", node),
			})
		default:
			fine(r, subject, "plugin", "ready, publishes devices")
		}
	}
	for _, n := range c.State.Nodes {
		if n.Labels["nvidia.com/gpu.present"] == "true" && !seen[n.Name] && published[n.Name] == 0 {
			r.Add(finding.Finding{
				Subject: "node " + n.Name, Check: "plugin", Severity: finding.Error, Message: "the node has GPUs by its labels, but no plugin",
				Why: "its GPUs cannot be asked for by claims", Fix: "check the DaemonSet's nodeSelector, affinity and tolerations against the node's labels and taints",
			})
		}
	}
	if len(seen) == 0 && len(published) == 0 {
		r.Add(finding.Finding{
			Subject: "cluster", Check: "plugin", Severity: finding.Error, Message: "no pod of the driver and no ResourceSlice of " + c.Driver,
			Why: "nothing publishes GPUs", Fix: "install the chart, or name the driver with --driver-name",
		})
	}
}

func isPlugin(p *corev1.Pod) bool {
	component := p.Labels[componentLabel]
	return p.Labels[pluginLabel] == pluginName && (component == "" || component == pluginComponent)
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func because(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil {
			return fmt.Sprintf(": container %s waits: %s %s", c.Name, w.Reason, w.Message)
		}
	}
	return ""
}

// pools checks that the scheduler may use what is published.
func pools(_ context.Context, c Cluster, r *finding.Report) {
	bad := map[string]bool{}
	for _, i := range c.State.Incomplete() {
		bad[i.Driver+"/"+i.Pool] = true
		r.Add(finding.Finding{
			Subject: "pool " + i.Pool, Check: "slices", Severity: finding.Error, Message: i.String(),
			Why: "the scheduler gives nothing of an incomplete pool to anybody", Fix: "look for refused slices in the plugin's log on that node",
		})
	}
	done := map[string]bool{}
	for _, s := range c.slices() {
		pool := s.Spec.Pool.Name
		if !bad[c.Driver+"/"+pool] && !done[pool] {
			done[pool] = true
			fine(r, "pool "+pool, "slices", fmt.Sprintf("complete, %d slices", s.Spec.Pool.ResourceSliceCount))
		}
	}
}

// classes checks that there are classes that select what is published.
func classes(ctx context.Context, c Cluster, r *finding.Report) {
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	chosen := map[string]int{}
	for _, class := range c.State.Classes {
		subject := "class " + class.Name
		n, err := selected(ctx, cache, class, c.State.Devices())
		if err != nil {
			r.Add(finding.Finding{
				Subject: subject, Check: "selector", Severity: finding.Error, Message: err.Error(),
				Why: "one failing expression ends the scheduling of every pod of this class, on every node", Fix: "correct the expression, and guard what a device may lack with ?. and orValue; docs/reference/attributes.md has one for each attribute",
			})
			chosen[class.Name] = 0
			continue
		}
		chosen[class.Name] = n
		if strings.HasSuffix(class.Name, "gpu.nvidia.com") || n > 0 {
			fine(r, subject, "selector", fmt.Sprintf("selects %d devices", n))
		}
	}
	kinds := map[string]int{}
	for _, d := range c.State.Devices() {
		if d.Driver == c.Driver {
			kinds[d.Kind()]++
		}
	}
	for kind, class := range map[string]string{"gpu": "gpu.nvidia.com", "mig": "mig.nvidia.com"} {
		if _, ok := chosen[class]; kinds[kind] > 0 && !ok {
			r.Add(finding.Finding{
				Subject: "class " + class, Check: "class", Severity: finding.Error, Message: fmt.Sprintf("%d devices of type %s are published, and the class is missing", kinds[kind], kind),
				Why: "manifests ask for GPUs by this class", Fix: "set the chart's value deviceClasses.create, or create the class",
			})
		}
	}
}

func selected(ctx context.Context, cache *cel.Cache, class *resourceapi.DeviceClass, devices []state.Device) (int, error) {
	n := 0
	for _, d := range devices {
		all := true
		for _, s := range class.Spec.Selectors {
			if s.CEL == nil {
				continue
			}
			compiled := cache.GetOrCompile(s.CEL.Expression)
			if compiled.Error != nil {
				return 0, fmt.Errorf("a selector cannot be read: %w", compiled.Error)
			}
			ok, _, err := compiled.DeviceMatches(ctx, cel.Device{Driver: d.Driver, AllowMultipleAllocations: ptr.To(d.Shared()), Attributes: d.Spec.Attributes, Capacity: d.Spec.Capacity})
			if err != nil {
				return 0, fmt.Errorf("a selector fails on device %s: %w", d.Name, err)
			}
			all = all && ok
		}
		if all {
			n++
		}
	}
	return n, nil
}

// byNVIDIA matches names that NVIDIA's own driver gives to devices.
var byNVIDIA = regexp.MustCompile(`^gpu-[0-9]+(-mig-.*)?$`)

// rivals finds others that hand out the same GPUs.
func rivals(_ context.Context, c Cluster, r *finding.Report) {
	ours := map[string]*conflict.Own{}
	for _, d := range c.State.Devices() {
		if d.Driver != c.Driver {
			continue
		}
		if ours[d.Node] == nil {
			ours[d.Node] = &conflict.Own{Driver: c.Driver}
		}
		// A partition that does not exist yet has no UUID.
		ours[d.Node].Partitions = ours[d.Node].Partitions || d.Text("uuid") == "" && d.Text("type") == "mig"
	}
	for _, n := range c.State.Nodes {
		own := ours[n.Name]
		if own == nil {
			continue
		}
		var seen conflict.Seen
		seen.Node, seen.MIGManager = look.Node(n, c.Driver)
		for _, found := range conflict.Judge(seen, *own) {
			r.Add(finding.Finding{
				Subject: "node " + n.Name, Check: strings.ReplaceAll(string(found.Kind), "-", " "), Severity: finding.Error, Message: found.Sign,
				Why: "two owners get the same GPU, so the driver refuses new claims there unless it is told otherwise (chart: conflicts)", Fix: found.Fix,
			})
		}
	}
}

// twins finds drivers that publish what this one does.
func twins(_ context.Context, c Cluster, r *finding.Report) {
	plugged, by := map[string]bool{}, map[string]bool{}
	for _, p := range c.State.Pods {
		plugged[p.Spec.NodeName] = plugged[p.Spec.NodeName] || isPlugin(p)
	}
	for _, d := range c.State.Devices() {
		by[d.Text("uuid")] = by[d.Text("uuid")] || d.Driver == c.Driver
	}
	for _, d := range c.State.Devices() {
		uuid := d.Text("uuid")
		if d.Driver == c.Driver && byNVIDIA.MatchString(d.Name) && plugged[d.Node] {
			r.Add(finding.Finding{
				Subject: "node " + d.Node, Check: "other driver", Severity: finding.Error, Message: fmt.Sprintf("device %s was published by NVIDIA's own driver, which has the same name", d.Name),
				Why: "two owners get the same GPU", Fix: "take NVIDIA's driver off this node; docs/install.md has the switch-over",
			})
			delete(plugged, d.Node)
		}
		if d.Driver != c.Driver && uuid != "" && by[uuid] {
			r.Add(finding.Finding{
				Subject: "node " + d.Node, Check: "other driver", Severity: finding.Error, Message: fmt.Sprintf("driver %s publishes GPU %s too", d.Driver, uuid),
				Why: "two owners get the same GPU", Fix: "run one of the drivers on a node",
			})
		}
	}
}

// taints tells of devices that are kept from claims.
func taints(_ context.Context, c Cluster, r *finding.Report) {
	for _, d := range c.State.Devices() {
		for _, t := range d.Repelling() {
			if d.Driver == c.Driver {
				r.Add(finding.Finding{
					Subject: "node " + d.Node, Check: "health", Severity: finding.Warning, Message: fmt.Sprintf("device %s is tainted %s=%s:%s", d.Name, t.Key, t.Value, t.Effect),
					Why: "claims without a toleration do not get it", Fix: "docs/health.md lists by taint what to do and how it ends",
				})
			}
		}
	}
}

// lost finds claims whose devices are gone.
func lost(_ context.Context, c Cluster, r *finding.Report) {
	known := map[state.ID]bool{}
	for _, d := range c.State.Devices() {
		known[d.ID] = true
	}
	for _, claim := range c.State.Claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := state.ID{Driver: result.Driver, Pool: result.Pool, Name: result.Device}
			if result.Driver == c.Driver && !known[id] {
				r.Add(finding.Finding{
					Subject: "claim " + claim.Namespace + "/" + claim.Name, Check: "device", Severity: finding.Warning, Message: fmt.Sprintf("it has device %s of node %s, which is not published any more", result.Device, result.Pool),
					Why: "its pod cannot be started again, and may not reach the GPU", Fix: "look at the node's GPU; deleting the pod frees the claim",
				})
			}
		}
	}
}
