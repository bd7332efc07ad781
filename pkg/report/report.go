// Package report is the one place where something that happened becomes a log line, a
// Kubernetes Event and a metric. The rest of the driver says what happened in its own words
// and never builds an Event itself. The package must not decide anything: it only tells.
package report

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/claims"
	"github.com/gpu-dra/driver/pkg/device"
	"github.com/gpu-dra/driver/pkg/inventory"
	"github.com/gpu-dra/driver/pkg/metrics"
)

// Recorder sends Events; client-go's events.EventRecorder is one. It must not block.
type Recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Losses counts what could not be offered, published or read.
type Losses interface {
	Omitted(n int)
	Quarantined(n int)
	Withheld(partitions int)
}

// Tidying counts what was undone, or could not be, behind the kubelet's back.
type Tidying interface {
	OrphanUndone()
	OrphansKept(n int)
	LeftoverRemoved()
}

// Meter counts what is reported; metrics.Metrics is one.
type Meter interface {
	Losses
	Tidying
}

// Reporter tells people what happened on one node.
type Reporter struct {
	recorder Recorder
	meter    Meter
	node     *corev1.Node

	mu sync.Mutex
	// told remembers lasting conditions by key, so that a rescan every few seconds tells each
	// of them once, and again only after it was gone or has changed.
	told map[string]string
}

// New makes a Reporter for the node of that name and UID. The UID may be empty: such Events
// are still found by the node's name.
func New(recorder Recorder, meter Meter, nodeName string, nodeUID types.UID) *Reporter {
	return &Reporter{
		recorder: recorder,
		meter:    meter,
		node:     &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: nodeUID}},
		told:     map[string]string{},
	}
}

// ClaimFailed tells that a claim could not be prepared or unprepared.
func (r *Reporter) ClaimFailed(ctx context.Context, op metrics.Operation, claim claims.Ref, err error) {
	reason := PrepareFailed
	if op == metrics.Unprepare {
		reason = UnprepareFailed
	}
	klog.FromContext(ctx).Error(err, "Claim failed", "operation", op,
		"claim", klog.KRef(claim.Namespace, claim.Name), "claimUID", claim.UID)
	r.event(claimObject(claim), corev1.EventTypeWarning, reason, err.Error())
}

// ClaimNoticed tells the claim's author what has no effect.
func (r *Reporter) ClaimNoticed(ctx context.Context, claim claims.Ref, notices []string) {
	note := strings.Join(notices, "; ")
	klog.FromContext(ctx).Info("Something of the claim has no effect", "note", note)
	r.event(claimObject(claim), corev1.EventTypeNormal, NoEffect, note)
}

// Omitted tells which values could not be published.
func (r *Reporter) Omitted(ctx context.Context, omissions []device.Omission) {
	current := map[string]string{}
	for _, o := range omissions {
		what := "Device " + o.Device
		if o.Name != "" {
			what = fmt.Sprintf("%s: %s %q", what, o.Name, o.Value)
		}
		current[o.Device+"/"+o.Name] = fmt.Sprintf("%s is not published: %s", what, o.Reason)
	}
	fresh := r.lasting(ctx, ValueOmitted, current)
	r.meter.Omitted(fresh)
}

// Withheld tells which GPUs do not offer all partitions that they could have.
func (r *Reporter) Withheld(ctx context.Context, withheld []device.Withheld) {
	current, partitions := map[string]string{}, 0
	for _, w := range withheld {
		partitions += w.Partitions
		what := "it is"
		if w.Partitions > 0 {
			what = fmt.Sprintf("%d of its partitions are", w.Partitions)
		}
		current[w.GPU.String()] = fmt.Sprintf("GPU %s: %s not offered now: %s", w.GPU, what, w.Reason)
	}
	r.meter.Withheld(partitions)
	r.lasting(ctx, MIGWithheld, current)
}

// Lasting tells those of the current conditions of a reason, by key, that were not told yet, and
// forgets those that are over.
func (r *Reporter) Lasting(ctx context.Context, reason Reason, current map[string]string) {
	r.lasting(ctx, reason, current)
}

// Hardware tells what a scan found wrong: GPUs that cannot be handed out, facts that could not
// be read, a GPU driver that is missing.
func (r *Reporter) Hardware(ctx context.Context, snapshot inventory.Snapshot) {
	unusable := map[string]string{}
	for _, u := range snapshot.Unusable {
		unusable[u.PCI.String()] = fmt.Sprintf("GPU %s cannot be handed out: %s", u.PCI, u.Reason)
	}
	r.lasting(ctx, GPUUnusable, unusable)
	unread := map[string]string{}
	for _, p := range snapshot.Problems {
		unread[p.PCI.String()+"/"+p.Fact] = fmt.Sprintf("GPU %s: %s could not be read: %v", p.PCI, p.Fact, p.Err)
	}
	r.lasting(ctx, FactUnreadable, unread)
	missing := map[string]string{}
	if !snapshot.Driver.Present {
		missing["driver"] = "No GPU driver: " + snapshot.Driver.Missing
	}
	r.lasting(ctx, DriverMissing, missing)
	r.lasting(ctx, DriverHung, nil)
}

// Hung tells that the GPU driver's library does not come back from a call. Hardware ends it.
func (r *Reporter) Hung(ctx context.Context, err error) {
	r.lasting(ctx, DriverHung, map[string]string{"driver": "The GPU driver hangs; the node's devices stay as they were: " + err.Error()})
}

// SlicesRefused tells that the API server does not hold what the node wants to publish.
func (r *Reporter) SlicesRefused(ctx context.Context, err error) {
	r.lasting(ctx, SlicesRefused, map[string]string{"slices": err.Error()})
}

// SlicesAccepted ends a SlicesRefused.
func (r *Reporter) SlicesAccepted(ctx context.Context) { r.lasting(ctx, SlicesRefused, nil) }

// Quarantined tells that a claim's record was unreadable and where it was put.
func (r *Reporter) Quarantined(ctx context.Context, file string, err error) {
	klog.FromContext(ctx).Error(err, "Claim record set aside", "file", file)
	r.meter.Quarantined(1)
	r.event(r.node, corev1.EventTypeWarning, RecordQuarantined,
		fmt.Sprintf("A claim record cannot be read and was set aside as %s: %v", file, err))
}

// Rebuilt tells that a claim's record was lost and made anew, and from what.
func (r *Reporter) Rebuilt(ctx context.Context, claim claims.Ref, from string) {
	note := fmt.Sprintf("The record of claim %s/%s (UID %s) was lost and is made anew from %s: its devices stay its own", claim.Namespace, claim.Name, claim.UID, from)
	klog.FromContext(ctx).Info(note)
	r.event(r.node, corev1.EventTypeWarning, RecordRebuilt, note)
}

// OrphanUndone tells that a claim was undone that the kubelet did not unprepare.
func (r *Reporter) OrphanUndone(ctx context.Context, claim claims.Ref, reason string) {
	r.meter.OrphanUndone()
	note := fmt.Sprintf("Claim %s/%s (UID %s) was undone without the kubelet: %s", claim.Namespace, claim.Name, claim.UID, reason)
	klog.FromContext(ctx).Info(note)
	r.event(r.node, corev1.EventTypeNormal, OrphanUndone, note)
}

// OrphansKept tells which claims are gone and have devices all the same, with the reason.
func (r *Reporter) OrphansKept(ctx context.Context, kept map[claims.Ref]string) {
	current := make(map[string]string, len(kept))
	for claim, reason := range kept {
		current[string(claim.UID)] = fmt.Sprintf("Claim %s/%s (UID %s) keeps its devices: %s", claim.Namespace, claim.Name, claim.UID, reason)
	}
	r.meter.OrphansKept(len(kept))
	r.lasting(ctx, OrphanKept, current)
}

// LeftoverRemoved tells that a thing was removed that no record accounted for.
func (r *Reporter) LeftoverRemoved(ctx context.Context, kind, id string) {
	r.meter.LeftoverRemoved()
	note := fmt.Sprintf("Removed %s %s: no claim's record accounts for it", kind, id)
	klog.FromContext(ctx).Info(note)
	r.event(r.node, corev1.EventTypeNormal, LeftoverRemoved, note)
}

// lasting tells those of the current conditions that were not told yet, forgets those that are
// over, and returns how many were new.
func (r *Reporter) lasting(ctx context.Context, reason Reason, current map[string]string) int {
	r.mu.Lock()
	fresh := map[string]string{}
	prefix := string(reason) + "\x00"
	for key, note := range current {
		if r.told[prefix+key] != note {
			r.told[prefix+key] = note
			fresh[key] = note
		}
	}
	for key := range r.told {
		if len(key) > len(prefix) && key[:len(prefix)] == prefix {
			if _, still := current[key[len(prefix):]]; !still {
				delete(r.told, key)
			}
		}
	}
	r.mu.Unlock()
	for key, note := range fresh {
		klog.FromContext(ctx).Info("Condition", "reason", reason, "note", note)
		r.event(r.partOfNode(key, note), corev1.EventTypeWarning, reason, note)
	}
	return len(fresh)
}

// partOfNode is the node with a field path that tells one condition from another. Without it the
// recorder takes Events of one reason for one and the same, counts them, and drops all notes but
// the first.
func (r *Reporter) partOfNode(key, note string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		Kind: "Node", APIVersion: "v1", Name: r.node.Name, UID: r.node.UID,
		FieldPath: fmt.Sprintf("condition{%s#%08x}", key, crc32.ChecksumIEEE([]byte(note))),
	}
}

// maxNote is the API's limit for an Event's note in bytes.
const maxNote = 1024

func (r *Reporter) event(regarding runtime.Object, kind string, reason Reason, note string) {
	if len(note) >= maxNote {
		note = strings.ToValidUTF8(note[:maxNote-len("...")-1], "") + "..."
	}
	r.recorder.Eventf(regarding, nil, kind, string(reason), reason.action(), "%s", note)
}

func claimObject(ref claims.Ref) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID},
	}
}
