package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
)

// ErrNotRegistered says that no instance of a driver is registered.
var ErrNotRegistered = errors.New("DRA driver is not registered")

// Claim names a claim for a plugin, which gets nothing else of it.
type Claim struct {
	Namespace, Name string
	UID             types.UID
}

// ClaimOf names c.
func ClaimOf(c *resourceapi.ResourceClaim) Claim {
	return Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
}

// Device is a prepared device as a plugin returns it.
type Device struct {
	// Requests are the names of the claim's requests that it serves; none means all.
	Requests     []string
	Pool, Name   string
	CDIDeviceIDs []string
	ShareID      types.UID
}

// Prepared is the answer for one claim: devices or an error.
type Prepared struct {
	Devices []Device
	Err     error
}

// Call is one gRPC call that was made.
type Call struct {
	// Method is NodePrepareResources or NodeUnprepareResources.
	Method   string
	Driver   string
	Endpoint string
	Claims   []Claim
	At       time.Time
	Took     time.Duration
	// Err is the failure of the call as a whole or of any claim in it.
	Err error
}

// callLog is the record of the calls.
type callLog struct {
	mu    sync.Mutex
	calls []Call
}

func (l *callLog) add(c Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

// Calls returns the calls so far, in the order of their ends.
func (k *Kubelet) Calls() []Call {
	k.calls.mu.Lock()
	defer k.calls.mu.Unlock()
	return slices.Clone(k.calls.calls)
}

// ResetCalls forgets the calls so far.
func (k *Kubelet) ResetCalls() {
	k.calls.mu.Lock()
	defer k.calls.mu.Unlock()
	k.calls.calls = nil
}

// Prepare calls NodePrepareResources of the driver's newest instance for all claims at once. The error
// is that of the call; each claim has its own in the result. A claim that the plugin left out has an error.
func (k *Kubelet) Prepare(ctx context.Context, driver string, claims ...Claim) (map[types.UID]Prepared, error) {
	var answer *drav1.NodePrepareResourcesResponse
	result := map[types.UID]Prepared{}
	err := k.call(ctx, "NodePrepareResources", driver, claims, func(ctx context.Context, client drav1.DRAPluginClient, c []*drav1.Claim) (map[types.UID]error, error) {
		var err error
		if answer, err = client.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: c}); err != nil {
			return nil, err
		}
		failed := map[types.UID]error{}
		for _, claim := range claims {
			one, ok := answer.Claims[string(claim.UID)]
			var p Prepared
			switch {
			case !ok:
				p.Err = fmt.Errorf("driver %s skipped claim %s/%s", driver, claim.Namespace, claim.Name)
			case one.Error != "":
				p.Err = errors.New(one.Error)
			default:
				p.Devices = devices(one.Devices)
			}
			result[claim.UID] = p
			failed[claim.UID] = p.Err
		}
		return failed, nil
	})
	return result, err
}

// Unprepare calls NodeUnprepareResources like [Kubelet.Prepare]. The result has an entry for each claim,
// nil where it worked.
func (k *Kubelet) Unprepare(ctx context.Context, driver string, claims ...Claim) (map[types.UID]error, error) {
	result := map[types.UID]error{}
	err := k.call(ctx, "NodeUnprepareResources", driver, claims, func(ctx context.Context, client drav1.DRAPluginClient, c []*drav1.Claim) (map[types.UID]error, error) {
		answer, err := client.NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: c})
		if err != nil {
			return nil, err
		}
		for _, claim := range claims {
			one, ok := answer.Claims[string(claim.UID)]
			switch {
			case !ok:
				result[claim.UID] = fmt.Errorf("driver %s skipped claim %s/%s", driver, claim.Namespace, claim.Name)
			case one.Error != "":
				result[claim.UID] = errors.New(one.Error)
			default:
				result[claim.UID] = nil
			}
		}
		return result, nil
	})
	return result, err
}

// do is one call over a chosen connection; it returns the errors of the claims.
type do func(context.Context, drav1.DRAPluginClient, []*drav1.Claim) (map[types.UID]error, error)

// call chooses an instance, bounds the time and keeps the record.
func (k *Kubelet) call(ctx context.Context, method, driver string, claims []Claim, do do) error {
	i, err := k.choose(driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k.options.CallTimeout)
	defer cancel()
	var wire []*drav1.Claim
	for _, c := range claims {
		wire = append(wire, &drav1.Claim{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)})
	}
	begun := time.Now()
	failed, err := do(ctx, i.client(), wire)
	if err != nil {
		err = fmt.Errorf("%s of driver %s at %s: %w", method, driver, i.info.Endpoint, err)
	}
	record := Call{Method: method, Driver: driver, Endpoint: i.info.Endpoint, Claims: claims, At: begun, Took: time.Since(begun), Err: err}
	for _, claim := range claims {
		record.Err = errors.Join(record.Err, failed[claim.UID])
	}
	k.calls.add(record)
	return err
}

// client speaks the version that was chosen at registration.
func (i *instance) client() drav1.DRAPluginClient {
	if i.info.Service == drav1beta1.DRAPluginService {
		return drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(i.conn)}
	}
	return drav1.NewDRAPluginClient(i.conn)
}

func devices(wire []*drav1.Device) []Device {
	var all []Device
	for _, d := range wire {
		all = append(all, Device{
			Requests: d.RequestNames, Pool: d.PoolName, Name: d.DeviceName,
			CDIDeviceIDs: d.CdiDeviceIds, ShareID: types.UID(d.GetShareId()),
		})
	}
	return all
}
