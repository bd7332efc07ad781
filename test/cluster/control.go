package cluster

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpu-dra/driver/test/cluster/internal/pki"
	"github.com/gpu-dra/driver/test/cluster/internal/proc"
)

// Names of the control plane's components, as in status and log files.
const (
	etcd                  = "etcd"
	kubeAPIServer         = "kube-apiserver"
	kubeControllerManager = "kube-controller-manager"
	kubeScheduler         = "kube-scheduler"
)

// certificates makes the authority and what the control plane needs of it.
func (c *Cluster) certificates(p plan) (*pki.Store, error) {
	store, err := pki.Open(c.path("pki"))
	if err != nil {
		return nil, err
	}
	if err := store.ServiceAccountKey(); err != nil {
		return nil, err
	}
	identities := map[string]pki.Identity{
		"apiserver": {
			CommonName: kubeAPIServer,
			IPs:        []net.IP{net.IPv4(127, 0, 0, 1), p.node(0).Addr().AsSlice(), p.kubernetesService().AsSlice()},
			DNSNames: []string{
				"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			},
		},
		"apiserver-kubelet-client": {CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}},
		"admin":                    {CommonName: "admin", Organizations: []string{"system:masters"}},
		kubeControllerManager:      {CommonName: "system:" + kubeControllerManager},
		kubeScheduler:              {CommonName: "system:" + kubeScheduler},
	}
	for name, id := range identities {
		if err := store.Issue(name, id); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"admin", kubeControllerManager, kubeScheduler} {
		if _, err := store.Kubeconfig(name, p.server()); err != nil {
			return nil, err
		}
	}
	return store, nil
}

// program is a command line inside the cluster's network.
func (c *Cluster) program(p plan, name string, args ...string) proc.Command {
	line := append(c.network(p).Enter(), filepath.Join(c.config.Bin, name))
	return proc.Command{Args: append(line, args...)}
}

func (c *Cluster) controlPlaneUp(ctx context.Context, p plan, store *pki.Store) error {
	if _, err := c.super.Start(ctx, etcd, c.program(p, etcd, etcdArgs(c.path("etcd"))...)); err != nil {
		return err
	}
	if _, err := c.super.Start(ctx, kubeAPIServer, c.program(p, kubeAPIServer, c.config.apiServerArgs(p, store)...)); err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	// As the administrator, so that the rules that RBAC starts with are waited for, too.
	err = c.super.WaitReady(ctx, kubeAPIServer, 120*time.Second, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return err
	}
	if _, err := c.super.Start(ctx, kubeControllerManager, c.program(p, kubeControllerManager, c.config.controllerManagerArgs(store, c.path("flex"))...)); err != nil {
		return err
	}
	_, err = c.super.Start(ctx, kubeScheduler, c.program(p, kubeScheduler, c.config.schedulerArgs(store)...))
	return err
}

func etcdArgs(data string) []string {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return []string{
		"--name=e", "--data-dir=" + data,
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=e=" + peer,
		// A test's data need not outlive a power cut.
		"--unsafe-no-fsync", "--log-level=warn",
	}
}

// common are the arguments of all three Kubernetes components.
func (c Config) common() []string {
	args := []string{"--v=" + strconv.Itoa(c.Verbosity), "--profiling=false"}
	if g := c.gates(); g != "" {
		args = append(args, "--feature-gates="+g)
	}
	return args
}

func (c Config) apiServerArgs(p plan, store *pki.Store) []string {
	args := append(c.common(),
		"--etcd-servers=http://127.0.0.1:2379",
		// Port 443 is that of the kubernetes Service, whose address this namespace has itself:
		// pods reach the server without kube-proxy.
		"--advertise-address="+p.node(0).Addr().String(), "--bind-address=0.0.0.0", "--secure-port=443",
		"--service-cluster-ip-range="+p.services().String(),
		"--client-ca-file="+store.Path("ca.crt"),
		"--tls-cert-file="+store.Path("apiserver.crt"), "--tls-private-key-file="+store.Path("apiserver.key"),
		"--kubelet-client-certificate="+store.Path("apiserver-kubelet-client.crt"),
		"--kubelet-client-key="+store.Path("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority="+store.Path("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+store.Path("sa.pub"), "--service-account-signing-key-file="+store.Path("sa.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		// Webhooks are reached at their pods: Services have no data path.
		"--enable-aggregator-routing=true")
	if rc := c.runtimeConfig(); rc != "" {
		args = append(args, "--runtime-config="+rc)
	}
	return args
}

// client are the arguments of a component that talks to the API server.
func (c Config) client(store *pki.Store, name string) []string {
	args := append(c.common(),
		"--kubeconfig="+store.Path(name+".kubeconfig"),
		// One instance: an election would only delay the restart.
		"--leader-elect=false", "--bind-address=127.0.0.1", "--authentication-skip-lookup")
	if c.APIQPS > 0 {
		args = append(args, fmt.Sprintf("--kube-api-qps=%d", c.APIQPS), fmt.Sprintf("--kube-api-burst=%d", 2*c.APIQPS))
	}
	return args
}

func (c Config) controllerManagerArgs(store *pki.Store, flexDir string) []string {
	return append(c.client(store, kubeControllerManager),
		"--use-service-account-credentials", "--service-account-private-key-file="+store.Path("sa.key"),
		"--root-ca-file="+store.Path("ca.crt"), "--flex-volume-plugin-dir="+flexDir,
		"--cluster-signing-cert-file="+store.Path("ca.crt"), "--cluster-signing-key-file="+store.Path("ca.key"))
}

func (c Config) schedulerArgs(store *pki.Store) []string { return c.client(store, kubeScheduler) }
