package bed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gpu-dra/driver/test/kubeapi"
)

// Users of an API server; all may do everything. What the last two do is recorded, which costs
// time: what is timed is not one of them.
const (
	Operator = "bench-operator"
	Plain    = "bench-plugin"
	Starter  = "bench-starter"
	Idler    = "bench-idler"
)

// Request is what a user asked of the API server.
type Request struct {
	// User and Verb as Kubernetes names them, Resource in lower-case plural.
	User, Verb, Resource string
}

// Write tells whether the request changes something.
func (r Request) Write() bool {
	return r.Verb != "get" && r.Verb != "list" && r.Verb != "watch"
}

// API is an API server.
type API interface {
	// Name says which one, for a report.
	Name() string
	// RESTConfig is a client configuration that is not throttled.
	RESTConfig(user string) *rest.Config
	// Requests is what [Starter] or [Idler] has asked so far.
	Requests(user string) ([]Request, error)
	// Close ends the server.
	Close() error
}

// Client makes a client that speaks protobuf, as the plugin does.
func Client(api API, user string) (kubernetes.Interface, error) {
	c := rest.CopyConfig(api.RESTConfig(user))
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", api.Name(), err)
	}
	return client, nil
}

// writeKubeconfig writes the configuration of a user for another process.
func writeKubeconfig(api API, user, path string) error {
	from := api.RESTConfig(user)
	const name = "bench"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: from.Host, CertificateAuthorityData: from.CAData}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: from.BearerToken}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}

// small is the API server of test/kubeapi, in this process.
type small struct {
	*kubeapi.Server
}

// StartSmall starts the small API server of test/kubeapi.
func StartSmall() (API, error) {
	server, err := kubeapi.Start(kubeapi.Options{})
	if err != nil {
		return nil, fmt.Errorf("small API server: %w", err)
	}
	return small{server}, nil
}

func (small) Name() string { return "test/kubeapi" }

func (s small) Requests(user string) ([]Request, error) {
	var all []Request
	for _, r := range s.Server.Requests(kubeapi.Match{User: user}) {
		all = append(all, Request{User: r.User, Verb: r.Verb, Resource: r.Resource})
	}
	return all, nil
}

// ErrNoPrograms says that kube-apiserver or etcd is not there.
var ErrNoPrograms = errors.New("the programs of a real API server are missing")

// kubernetesAPI is a kube-apiserver with its etcd.
type kubernetesAPI struct {
	dir, host       string
	ca              []byte
	etcd, apiServer *process
}

// StartKubernetes starts etcd and kube-apiserver from the directory bin, with their data below dir,
// and returns when the server is ready. The error is [ErrNoPrograms] where bin lacks them.
func StartKubernetes(ctx context.Context, bin, dir string) (API, error) {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoPrograms, err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	k := &kubernetesAPI{dir: dir}
	if err := k.start(ctx, bin); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *kubernetesAPI) start(ctx context.Context, bin string) error {
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return err
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	k.etcd, err = launch(ctx, filepath.Join(k.dir, "etcd.log"), filepath.Join(bin, "etcd"),
		"--name=e", "--data-dir="+filepath.Join(k.dir, "etcd"), "--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=e="+peer,
		// Its waits for the disk would disturb those that are measured.
		"--unsafe-no-fsync", "--log-level=warn")
	if err != nil {
		return err
	}
	k.host = "https://127.0.0.1:" + ports[2]
	args, err := k.apiServerArgs(client, ports[2])
	if err != nil {
		return err
	}
	if k.apiServer, err = launch(ctx, filepath.Join(k.dir, "kube-apiserver.log"), filepath.Join(bin, "kube-apiserver"), args...); err != nil {
		return err
	}
	return k.waitReady(ctx)
}

// freePorts finds ports of the loopback address that nothing listens on now.
func freePorts(ctx context.Context, n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		defer l.Close() // all stay open until all are found
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		ports = append(ports, port)
	}
	return ports, nil
}

func (k *kubernetesAPI) apiServerArgs(etcd, port string) ([]string, error) {
	key, err := signingKey()
	if err != nil {
		return nil, err
	}
	var tokens strings.Builder
	for _, user := range []string{Operator, Plain, Starter, Idler} {
		fmt.Fprintf(&tokens, "%s,%s,%s,system:masters\n", user, user, user)
	}
	policy := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules:\n" +
		"- level: Metadata\n  users: [" + Starter + ", " + Idler + "]\n- level: None\n"
	for name, content := range map[string]string{"tokens.csv": tokens.String(), "audit.yaml": policy, "sa.key": string(key)} {
		if err := os.WriteFile(filepath.Join(k.dir, name), []byte(content), 0o600); err != nil {
			return nil, fmt.Errorf("API server: %w", err)
		}
	}
	file := func(name string) string { return filepath.Join(k.dir, name) }
	return []string{
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--secure-port=" + port, "--cert-dir=" + file("certs"),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/24",
		"--token-auth-file=" + file("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + file("sa.key"), "--service-account-signing-key-file=" + file("sa.key"),
		"--audit-policy-file=" + file("audit.yaml"), "--audit-log-path=" + file("audit.log"), "--profiling=false",
	}, nil
}

// waitReady waits until the server answers and its first rules are in place.
func (k *kubernetesAPI) waitReady(ctx context.Context) error {
	const (
		limit = 2 * time.Minute
		again = 200 * time.Millisecond
	)
	var last error
	err := wait.PollUntilContextTimeout(ctx, again, limit, true, func(ctx context.Context) (bool, error) {
		for _, p := range []*process{k.etcd, k.apiServer} {
			if !p.running() {
				return false, fmt.Errorf("%s ended: %w", p.cmd.Path, errors.Join(p.err, fmt.Errorf("see %s", p.log)))
			}
		}
		last = k.ready(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the API server: %w", errors.Join(err, last))
	}
	return nil
}

// ready asks the server whether it is. It writes its certificate, signed by itself, when it starts.
func (k *kubernetesAPI) ready(ctx context.Context) error {
	var err error
	if k.ca, err = os.ReadFile(filepath.Join(k.dir, "certs", "apiserver.crt")); err != nil {
		return err
	}
	client, err := Client(k, Operator)
	if err != nil {
		return err
	}
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func (k *kubernetesAPI) Name() string { return "kube-apiserver" }

func (k *kubernetesAPI) RESTConfig(user string) *rest.Config {
	return &rest.Config{Host: k.host, BearerToken: user, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: k.ca}}
}

func (k *kubernetesAPI) Requests(user string) ([]Request, error) {
	raw, err := os.ReadFile(filepath.Join(k.dir, "audit.log"))
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	all, err := parseAudit(raw)
	return slices.DeleteFunc(all, func(r Request) bool { return r.User != user }), err
}

// Close kills the server, whose data nobody needs, and lets etcd end.
func (k *kubernetesAPI) Close() error {
	if k.apiServer != nil {
		k.apiServer.kill()
	}
	if k.etcd != nil {
		k.etcd.kill()
	}
	return nil
}
