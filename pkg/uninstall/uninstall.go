// Package uninstall tells whether a cluster can do without the driver: which claims still have
// devices of it on some node. It is for the chart's hook before an uninstall. It must not know
// devices or nodes' files, and changes nothing.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// pageSize is how many claims are read at a time, so that a cluster with many of them costs
	// little memory.
	pageSize = 500
	// shown is how many claims a message names.
	shown = 20
)

// ErrUnknown is wrapped by the error for claims that could not be read.
var ErrUnknown = errors.New("it is not known whether claims are in use")

// Claims lists claims: the client's ResourceV1().ResourceClaims("").
type Claims interface {
	List(ctx context.Context, options metav1.ListOptions) (*resourceapi.ResourceClaimList, error)
}

// Use is one claim that has devices of the driver and is reserved, so that its nodes may have
// prepared it.
type Use struct {
	Namespace, Name string
	// Nodes are the pools of its devices, which have the nodes' names.
	Nodes []string
	// By are who it is reserved for, such as "pod/train-0".
	By []string
}

// String is one line of a message.
func (u Use) String() string {
	return fmt.Sprintf("%s/%s on %s, used by %s", u.Namespace, u.Name, strings.Join(u.Nodes, ", "), strings.Join(u.By, ", "))
}

// InUseError tells that claims are in use, and the ways out.
type InUseError struct {
	Driver string
	Uses   []Use
}

func (e *InUseError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d claims have devices of %s and are in use:\n", len(e.Uses), e.Driver)
	for _, u := range e.Uses[:min(len(e.Uses), shown)] {
		fmt.Fprintf(&b, "  %s\n", u)
	}
	if more := len(e.Uses) - shown; more > 0 {
		fmt.Fprintf(&b, "  and %d more\n", more)
	}
	b.WriteString("Without the driver their pods go on, but when deleted stay Terminating: nobody can undo their claims.\n" +
		"Delete those pods, wait until they are gone, and uninstall again. To uninstall all the same: helm uninstall --no-hooks;\n" +
		"then install the chart again, or run \"gpu-kubelet-plugin cleanup\" on those nodes, to end the claims.")
	return b.String()
}

// Of tells how a claim uses the driver.
func Of(claim *resourceapi.ResourceClaim, driver string) (Use, bool) {
	use := Use{Namespace: claim.Namespace, Name: claim.Name}
	if claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 {
		return use, false
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == driver && !slices.Contains(use.Nodes, r.Pool) {
			use.Nodes = append(use.Nodes, r.Pool)
		}
	}
	for _, c := range claim.Status.ReservedFor {
		kind := strings.TrimSuffix(c.Resource, "s")
		use.By = append(use.By, kind+"/"+c.Name)
	}
	return use, len(use.Nodes) > 0
}

// Check fails with *InUseError while claims use the driver, and with ErrUnknown where the API
// server does not say.
func Check(ctx context.Context, claims Claims, driver string) error {
	var uses []Use
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := claims.List(ctx, options)
		if err != nil {
			return fmt.Errorf("%w: list ResourceClaims: %w (helm uninstall --no-hooks does not ask)", ErrUnknown, err)
		}
		for i := range page.Items {
			if use, ok := Of(&page.Items[i], driver); ok {
				uses = append(uses, use)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	if len(uses) > 0 {
		return &InUseError{Driver: driver, Uses: uses}
	}
	return nil
}

// Tell is Check for a person who reads out: with warnOnly nothing is an error.
func Tell(ctx context.Context, claims Claims, driver string, warnOnly bool, out io.Writer) error {
	err := Check(ctx, claims, driver)
	switch {
	case err == nil:
		_, err = fmt.Fprintf(out, "No claim uses %s.\n", driver)
	case warnOnly:
		_, err = fmt.Fprintf(out, "warning: %v\n", err)
	}
	return err
}
