package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"syscall"
)

// Network is a network namespace with a pair of virtual interfaces to the machine: Link
// outside, eth0 inside. Nothing routes beyond the machine.
type Network struct {
	Run Runner
	// File is where the namespace is mounted. It is not below /run/netns: `ip netns` would
	// leave that folder as a mount for good.
	File string
	// Link is the name of the outer interface, at most 15 bytes.
	Link string
	// Outer and Inner are the addresses of the pair's ends, with their prefix.
	Outer, Inner netip.Prefix
	// Local are further addresses of the namespace itself, on its loopback interface.
	Local []netip.Addr
}

// Up makes the namespace and its interfaces; what is there stays.
func (n Network) Up(ctx context.Context) error {
	if err := n.makeNamespace(ctx); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if _, err := n.Run(ctx, "ip", "link", "show", n.Link); err != nil {
		if _, err := n.Run(ctx, "ip", "link", "add", n.Link, "type", "veth", "peer", "name", "eth0", "netns", n.File); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	outside := [][]string{
		{"addr", "replace", n.Outer.String(), "dev", n.Link},
		{"link", "set", n.Link, "up"},
	}
	for _, args := range outside {
		if _, err := n.Run(ctx, "ip", args...); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	inside := [][]string{{"link", "set", "lo", "up"}}
	for _, a := range n.Local {
		inside = append(inside, []string{"addr", "replace", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo"})
	}
	inside = append(inside,
		[]string{"addr", "replace", n.Inner.String(), "dev", "eth0"},
		[]string{"link", "set", "eth0", "up"},
		// A default route, so that code which asks for "the" interface finds one. It ends at
		// the machine, which does not forward.
		[]string{"route", "replace", "default", "via", n.Outer.Addr().String()})
	for _, args := range inside {
		if err := n.ip(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func (n Network) makeNamespace(ctx context.Context) error {
	if _, err := n.Run(ctx, "nsenter", "--net="+n.File, "true"); err == nil {
		return nil
	}
	f, err := os.OpenFile(n.File, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = n.Run(ctx, "unshare", "--net="+n.File, "true")
	return err
}

// Enter is the start of a command line that runs the rest inside the namespace.
func (n Network) Enter() []string { return []string{"nsenter", "--net=" + n.File, "--"} }

func (n Network) ip(ctx context.Context, args ...string) error {
	if _, err := n.Run(ctx, "nsenter", append([]string{"--net=" + n.File, "--", "ip"}, args...)...); err != nil {
		return fmt.Errorf("network inside the namespace: %w", err)
	}
	return nil
}

// AddAddress gives eth0 one address more.
func (n Network) AddAddress(ctx context.Context, a netip.Prefix) error {
	return n.ip(ctx, "addr", "replace", a.String(), "dev", "eth0")
}

// Down removes the interfaces and the namespace. Processes inside should have ended.
func (n Network) Down(ctx context.Context) error {
	if _, err := n.Run(ctx, "ip", "link", "show", n.Link); err == nil {
		if _, err := n.Run(ctx, "ip", "link", "del", n.Link); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	if _, err := n.Run(ctx, "nsenter", "--net="+n.File, "true"); err == nil {
		if err := syscall.Unmount(n.File, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
	}
	if err := os.Remove(n.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("network namespace: %w", err)
	}
	return nil
}
