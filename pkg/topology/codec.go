package topology

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// memoryVersion is the version of the file. Members that are added keep it: older versions
// carry what they do not know. A change that older versions must not read raises it.
const memoryVersion = 1

// maxBoards bounds what a file may hold; a node has at most 64 GPUs.
const maxBoards = 512

// ErrMemory is wrapped by every error about a memory that cannot be used.
var ErrMemory = errors.New("unusable NVLink memory")

// ErrNewer is wrapped, together with ErrMemory, by the error about a file of a later release. It
// is neither moved nor overwritten: after a downgrade and an upgrade the domains are the same.
var ErrNewer = errors.New("written by a later release")

// file is the JSON form of a Memory.
type file struct {
	Version int            `json:"version"`
	Boards  []Board        `json:"boards"`
	Domains []KnownDomain  `json:"domains"`
	Unknown jsontext.Value `json:",embed"`
}

// Encode renders the memory as JSON; equal memories give equal bytes.
func (m Memory) Encode() ([]byte, error) {
	out, err := json.Marshal(file{Version: memoryVersion, Boards: m.Boards, Domains: m.Domains, Unknown: m.Unknown},
		json.Deterministic(true), jsontext.Multiline(true))
	if err != nil {
		return nil, fmt.Errorf("encoding NVLink memory: %w", err)
	}
	return append(out, '\n'), nil
}

// Decode is the inverse of Encode. It refuses what contradicts itself, with an error that
// wraps ErrMemory, and keeps JSON members that it does not know.
func Decode(data []byte) (Memory, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return Memory{}, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	if f.Version > memoryVersion {
		return Memory{}, fmt.Errorf("%w: %w: version is %d, this program reads %d", ErrMemory, ErrNewer, f.Version, memoryVersion)
	}
	if f.Version != memoryVersion {
		return Memory{}, fmt.Errorf("%w: version is %d, this program reads %d", ErrMemory, f.Version, memoryVersion)
	}
	m := Memory{Boards: f.Boards, Domains: f.Domains, Unknown: f.Unknown}
	if err := m.check(); err != nil {
		return Memory{}, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return m, nil
}

// check verifies what the rest of the package relies on.
func (m Memory) check() error {
	if len(m.Boards) > maxBoards {
		return fmt.Errorf("boards: %d entries, at most %d are allowed", len(m.Boards), maxBoards)
	}
	peers := map[string][]string{}
	last := ""
	for i, b := range m.Boards {
		if b.UUID <= last {
			return fmt.Errorf("boards[%d].uuid: %q must be greater than %q before it", i, b.UUID, last)
		}
		last = b.UUID
		if !ascending(b.Peers) || len(b.Peers) == 0 {
			return fmt.Errorf("boards[%d].peers: must be sorted, unique and not empty", i)
		}
		peers[b.UUID] = b.Peers
	}
	for _, b := range m.Boards {
		for _, p := range b.Peers {
			if p == b.UUID || !slices.Contains(peers[p], b.UUID) {
				return fmt.Errorf("board %q: peer %q does not name it in return", b.UUID, p)
			}
		}
	}
	return m.checkDomains(peers)
}

func (m Memory) checkDomains(peers map[string][]string) error {
	values, owners := map[string]bool{}, map[string]bool{}
	for i, d := range m.Domains {
		if d.Value == "" || len(d.Value) > 64 || values[d.Value] {
			return fmt.Errorf("domains[%d].value: %q must be unique and have 1 to 64 bytes", i, d.Value)
		}
		values[d.Value] = true
		if !ascending(d.Members) || len(d.Members) < 2 {
			return fmt.Errorf("domains[%d].members: must be sorted, unique and at least two", i)
		}
		for j, a := range d.Members {
			if owners[a] {
				return fmt.Errorf("domains[%d].members: %q is in another domain", i, a)
			}
			owners[a] = true
			for _, b := range d.Members[:j] {
				if !slices.Contains(peers[a], b) {
					return fmt.Errorf("domains[%d].members: %q and %q are not peers", i, a, b)
				}
			}
		}
	}
	return nil
}

// ascending tells whether the list is sorted without duplicates.
func ascending(list []string) bool {
	for i := 1; i < len(list); i++ {
		if list[i-1] >= list[i] {
			return false
		}
	}
	return true
}
