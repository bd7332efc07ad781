package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/google/renameio/v2"
)

// slots is how many clusters fit into 198.18.0.0/15.
const slots = 16

// ErrNoSlot is returned when 16 clusters share the machine already.
var ErrNoSlot = errors.New("no free address range: 16 clusters use this machine; take one down with `reset`")

// plan is the addresses of one cluster. A slot S has the nodes in 198.18.(2S).0/24, the
// services in 198.18.(2S+1).0/24 and the pods of node N in 198.19.(16S+N).0/24.
type plan struct{ slot int }

func (p plan) address(third, fourth int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(third), byte(fourth)})
}

// outer is the machine's end of the link.
func (p plan) outer() netip.Prefix { return netip.PrefixFrom(p.address(2*p.slot, 1), 24) }

// node is a node's address; that of node 0 is the API server's, too.
func (p plan) node(i int) netip.Prefix { return netip.PrefixFrom(p.address(2*p.slot, 2+i), 24) }

func (p plan) services() netip.Prefix {
	return netip.PrefixFrom(p.address(2*p.slot+1, 0), 24)
}

// kubernetesService is the address of the Service that every pod finds the API server by.
func (p plan) kubernetesService() netip.Addr { return p.address(2*p.slot+1, 1) }

func (p plan) pods(node int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(maxNodes*p.slot + node), 0}), 24)
}

func (p plan) server() string { return "https://" + p.node(0).Addr().String() }

// slotFile remembers a cluster's slot: its certificates hold the addresses.
func slotFile(state string) string { return filepath.Join(state, "slot") }

func readSlot(state string) (int, bool, error) {
	raw, err := os.ReadFile(slotFile(state))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("address range: %w", err)
	}
	slot, err := strconv.Atoi(string(raw))
	if err != nil || slot < 0 || slot >= slots {
		return 0, false, fmt.Errorf("address range: %s holds %q, must be 0 to %d: `reset` the cluster", slotFile(state), raw, slots-1)
	}
	return slot, true, nil
}

// claimSlot returns the cluster's slot, or takes the first that neither a cluster next to it
// nor an interface of the machine uses. The caller holds the machine's lock.
func claimSlot(state string, addresses []net.Addr) (int, error) {
	if slot, ok, err := readSlot(state); err != nil || ok {
		return slot, err
	}
	used := map[int]bool{}
	siblings, err := filepath.Glob(slotFile(filepath.Join(filepath.Dir(state), "*")))
	if err != nil {
		return 0, fmt.Errorf("address range: %w", err)
	}
	for _, file := range siblings {
		if slot, ok, err := readSlot(filepath.Dir(file)); err == nil && ok {
			used[slot] = true
		}
	}
	for slot := range slots {
		if !used[slot] && !inUse(plan{slot}.outer(), addresses) {
			if err := renameio.WriteFile(slotFile(state), []byte(strconv.Itoa(slot)), 0o644); err != nil {
				return 0, fmt.Errorf("address range: %w", err)
			}
			return slot, nil
		}
	}
	return 0, ErrNoSlot
}

func inUse(network netip.Prefix, addresses []net.Addr) bool {
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(network) {
			return true
		}
	}
	return false
}
