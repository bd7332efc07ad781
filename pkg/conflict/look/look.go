// Package look looks at a node for what package conflict judges: at the Node object, and at the
// directory in which the kubelet finds plugins. It reads, and connects to sockets without a word;
// it must not decide anything.
package look

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/gpu-dra/driver/pkg/conflict"
	"github.com/gpu-dra/driver/pkg/mig/declaration"
)

// Published is the driver name of NVIDIA's own DRA driver.
const Published = "gpu.nvidia.com"

const (
	// nodeEvery is after how many looks the API server is asked for the Node again: thousands of nodes
	// ask the same one, and a device plugin does not come and go. Until it was known once, each look
	// asks.
	nodeEvery = 4
	// nodeLimit bounds that question, socketLimit a connection.
	nodeLimit   = 2 * time.Second
	socketLimit = time.Second
)

// NodeGetter reads Nodes; client-go's NodeInterface is one.
type NodeGetter interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Node, error)
}

// Looker looks at one node. It implements conflict.Looker and is safe for concurrent use.
type Looker struct {
	Nodes NodeGetter
	// Node is the node's name, Registry the kubelet's directory of plugins.
	Node, Registry string
	// Driver is the name of this driver. Alone tells that its registration socket has the name
	// that other instances, too, would have: then it is known to be our own.
	Driver string
	Alone  bool

	mu sync.Mutex
	// fresh is for how many looks more the Node is known well enough.
	fresh int
	node  *conflict.Node
	mig   string
}

// Look implements conflict.Looker. What the API server does not tell stays as it was.
func (l *Looker) Look(ctx context.Context) conflict.Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fresh--; l.fresh <= 0 {
		l.readNode(ctx)
		l.fresh = nodeEvery
	}
	if l.node == nil {
		l.fresh = 0
	}
	return conflict.Seen{Node: l.node, MIGManager: l.mig, Registered: l.registered(ctx)}
}

func (l *Looker) readNode(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	// From the API server's memory: cheap, and late by a moment at worst.
	n, err := l.Nodes.Get(limited, l.Node, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("It is not known whether a device plugin serves this node", "err", err)
		}
		return
	}
	l.node, l.mig = Node(n, l.Driver)
}

// Node is what matters of a Node object for the driver of that name, and the sign of a MIG manager.
func Node(n *corev1.Node, driver string) (node *conflict.Node, migManager string) {
	node = &conflict.Node{Allocatable: map[string]string{}}
	for name, amount := range n.Status.Allocatable {
		if !amount.IsZero() {
			node.Allocatable[string(name)] = amount.String()
		}
	}
	if other := new(declaration.OtherToolError); errors.As(declaration.OtherTool(declaration.Node{Labels: n.Labels, Annotations: n.Annotations}, driver), &other) {
		migManager = other.Sign
	}
	return node, migManager
}

// registered finds sockets by which the kubelet finds other DRA drivers for GPUs. A file on which
// nobody listens was left by a process that was killed. Instances of this driver have sockets with
// the UIDs of their pods, those of NVIDIA's have none.
func (l *Looker) registered(ctx context.Context) map[string]string {
	found := map[string]string{}
	for _, driver := range []string{l.Driver, Published} {
		patterns := []string{driver + "-reg.sock"}
		switch {
		case driver == l.Driver && l.Alone:
			continue
		case driver != l.Driver:
			patterns = append(patterns, driver+"-*-reg.sock")
		}
		for _, pattern := range patterns {
			// The only error is of a bad pattern.
			paths, _ := filepath.Glob(filepath.Join(l.Registry, pattern))
			for _, path := range paths {
				if listens(ctx, path) {
					found[driver] = path
				}
			}
		}
	}
	return found
}

// listens tells whether somebody has the socket. One who accepts nothing, since it hangs or is
// stopped, has it all the same, and a connection that fails on this side says nothing of the other.
func listens(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, socketLimit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}
