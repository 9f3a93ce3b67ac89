// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// statusTimeout limits each request of the command status: the request to the agent and the
	// request to the API.
	statusTimeout = 3 * time.Second
	// maxReport is the maximum size of an agent's response.
	maxReport = 4 << 20
)

// errUnhealthy is the error of the command status for an unhealthy agent. The output has the
// details.
var errUnhealthy = errors.New("the agent does not run, holds no lock or has problems")

// snapshot is the result of the command status. Each part is independent of the other parts.
type snapshot struct {
	// ConfigurationError is the error of loading the configuration. After such an error, the other
	// parts come from the configuration that an agent in safe mode uses: the configuration that was
	// stored in this boot, or the defaults.
	ConfigurationError string `json:"configurationError,omitempty"`
	// Report is the response of the running agent; nil with a ReportError if it did not respond.
	Report      *Report `json:"report,omitempty"`
	ReportError string  `json:"reportError,omitempty"`
	// Stored is the state in the state directory.
	Stored      *state.State `json:"stored,omitempty"`
	StoredError string       `json:"storedError,omitempty"`
	// Node is the name of the Node object, and Conditions are its conditions.
	Node       string                 `json:"node,omitempty"`
	Conditions []corev1.NodeCondition `json:"conditions,omitempty"`
	NodeError  string                 `json:"nodeError,omitempty"`
}

func newStatusCommand(o *Options) *cobra.Command {
	output := "text"
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of the agent",
		Long: `Show the status of this machine's agent: the command queries the running agent,
reads its state directory, and reads the conditions of the node from the API. The
output lists every part that fails, such as a configuration that cannot be loaded.
The exit code is 0 if the agent runs, holds the lock that delays a shutdown, and
has no problems.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output is %q: must be text or json", output)
			}
			c, loadErr := o.Load()
			if loadErr != nil {
				c = lastConfiguration(cmd.Context(), o)
				c.Kubeconfig, c.NodeName = cmp.Or(o.Kubeconfig, c.Kubeconfig), cmp.Or(o.NodeName, c.NodeName)
			}
			s := takeSnapshot(cmd.Context(), c)
			s.ConfigurationError = text(loadErr)
			var err error
			if output == "json" {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(s)
			} else {
				err = s.print(cmd.OutOrStdout(), time.Now())
			}
			if err == nil && !s.healthy() {
				err = errUnhealthy
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", output, "Output format: text or json.")
	return cmd
}

func takeSnapshot(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration) *snapshot {
	s := &snapshot{}
	report, err := askAgent(ctx, *c.MetricsBindAddress)
	s.Report, s.ReportError = report, text(err)
	stored, err := state.Read(c.StateDirectory, state.RunDirectory)
	if err == nil {
		s.Stored = &stored
	}
	s.StoredError = text(err)
	s.Node, s.Conditions, err = askNode(ctx, c, report)
	s.NodeError = text(err)
	return s
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func askAgent(ctx context.Context, address string) (*Report, error) {
	if address == "" {
		return nil, errors.New("metricsBindAddress is empty, so the agent has no status endpoint")
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+kubelet.Reachable(address)+statuszPath, nil)
	if err != nil {
		return nil, err
	}
	// Ignore the proxy of the environment: the request stays on this machine.
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return nil, fmt.Errorf("query the agent: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("query the agent: %s answered %s", address, response.Status)
	}
	report := &Report{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxReport)).Decode(report); err != nil {
		return nil, fmt.Errorf("query the agent: invalid response from %s: %w", address, err)
	}
	return report, nil
}

// askNode reads the node conditions that the agent writes from the API.
func askNode(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration, report *Report) (string, []corev1.NodeCondition, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	rest, err := restConfig(c.Kubeconfig)
	if err != nil {
		return "", nil, err
	}
	name := ""
	if report != nil {
		name = report.Node
	}
	if name == "" {
		if name, err = nodeName(ctx, c, rest); err != nil {
			return "", nil, err
		}
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return name, nil, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return name, nil, err
	}
	var conditions []corev1.NodeCondition
	for _, condition := range node.Status.Conditions {
		switch condition.Type {
		case v1alpha1.NodeConditionAgentReady, v1alpha1.NodeConditionAgentRunning, corev1.NodeGracefulNodeShutdownInProgress:
			conditions = append(conditions, condition)
		}
	}
	return name, conditions, nil
}

// healthy reports whether the agent runs, holds the lock or already delays a shutdown, and has no
// problems.
func (s *snapshot) healthy() bool {
	return s.ConfigurationError == "" && s.Report != nil && s.Report.Shutdown.LockHeld && len(s.Report.Shutdown.Problems) == 0
}

func (s *snapshot) print(out io.Writer, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "%s:\t%s\n", name, fmt.Sprintf(format, args...)) // Flush returns the error
	}
	if s.ConfigurationError != "" {
		line("Configuration", "%s", s.ConfigurationError)
	}
	if s.Node != "" {
		line("Node", "%s", s.Node)
	}
	stored := s.Stored
	if r := s.Report; r != nil {
		line("Agent", "running for %s, version %s", now.Sub(r.Started).Round(time.Second), r.Version)
		stored = &r.Shutdown.State
	} else {
		line("Agent", "no answer: %s", s.ReportError)
	}
	if stored == nil {
		line("State", "unknown: %s", s.StoredError)
	} else {
		s.printState(line, stored, now)
	}
	if r := s.Report; r != nil {
		s.printReport(line, r)
	}
	for _, c := range s.Conditions {
		line(string(c.Type), "%s", strings.TrimSpace(fmt.Sprintf("%s (%s) %s", c.Status, c.Reason, c.Message)))
	}
	if s.NodeError != "" {
		line("API", "no answer: %s", s.NodeError)
	}
	return w.Flush()
}

func (s *snapshot) printState(line func(name, format string, args ...any), stored *state.State, now time.Time) {
	line("Phase", "%s", cmp.Or(stored.Phase, "none"))
	if signal := stored.Signal; !signal.Time.IsZero() {
		left := "no deadline"
		if !signal.Deadline.IsZero() {
			left = fmt.Sprintf("the machine goes down at %s at the latest, %s from now",
				signal.Deadline.Format(time.RFC3339), signal.Deadline.Sub(now).Round(time.Second))
		}
		line("Shutdown", "%s, requested at %s; %s", cmp.Or(signal.Kind, "shutdown"), signal.Time.Format(time.RFC3339), left)
	}
	if m := stored.Maintenance; m != nil {
		line("NodeMaintenance", "%s", m.Name)
	}
	if l := stored.Local; l != nil {
		progress := fmt.Sprintf("ending bucket %d since %s", l.Bucket, l.Started.Format(time.RFC3339))
		if l.Done {
			progress = "all pods have ended"
		}
		line("Without the API", "%s", progress)
	}
	if len(stored.Killed) > 0 {
		reported := 0
		for _, pod := range stored.Killed {
			if pod.Reported {
				reported++
			}
		}
		line("Pods ended", "%d, of which %d are reported to the API", len(stored.Killed), reported)
	}
}

// printReport prints the values that only a running agent has.
func (s *snapshot) printReport(line func(name, format string, args ...any), r *Report) {
	if why := r.Shutdown.Why; why != "" {
		line("Why", "%s", why)
	}
	if r.Shutdown.TimeLeft > 0 {
		line("Time left", "%s", r.Shutdown.TimeLeft.Round(time.Second))
	}
	lock := "not held: the agent does not delay a shutdown"
	if r.Shutdown.LockHeld {
		lock = fmt.Sprintf("held: the agent delays a shutdown by at most %s", r.Shutdown.Delay)
		if path := r.Shutdown.State.LockPath; path != "" {
			lock += " (" + path + ")"
		}
	}
	line("Lock", "%s", lock)
	line("Engine", "%s", cmp.Or(r.Engine, "none: the agent ends pods only through the API"))
	line("Static pods", "%s", cmp.Or(r.StaticPodProblem, "can be stopped and restarted"))
	for _, path := range r.Parked {
		line("Parked", "%s", path)
	}
	for _, problem := range r.Shutdown.Problems {
		line("Problem", "%s", problem)
	}
}

const (
	healthzPath = "/healthz"
	metricsPath = "/metrics"
	statuszPath = "/statusz"

	// listenRetry is the pause before the agent tries again to bind an address. Until then, the
	// agent runs without its endpoints: a port in use must not prevent an ordered shutdown of the
	// node.
	listenRetry = 10 * time.Second
	// requestTimeout limits the time in which a client must send a request or read a response.
	requestTimeout = 10 * time.Second
)

// Report is the response of a running agent at /statusz.
type Report struct {
	// Version is the version of the agent. Started is the time of its start. BootID identifies the
	// present boot of the node.
	Version string    `json:"version"`
	Node    string    `json:"node"`
	BootID  string    `json:"bootID"`
	Started time.Time `json:"started"`
	// Engine is the way in which the agent ends pods without the API; empty if it ends none.
	Engine string `json:"engine,omitempty"`
	// StaticPodProblem is the reason why the agent cannot stop and restart static pods; empty if it
	// can.
	StaticPodProblem string `json:"staticPodProblem,omitempty"`
	// Parked are the paths of the parked manifests.
	Parked []string `json:"parked,omitempty"`
	// Shutdown is the status of the shutdown manager.
	Shutdown shutdown.Status `json:"shutdown"`
}

func endpoints(report func() Report) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthzPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET "+metricsPath, legacyregistry.Handler())
	mux.HandleFunc("GET "+statuszPath, func(w http.ResponseWriter, _ *http.Request) {
		data, err := json.MarshalIndent(report(), "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(data, '\n'))
	})
	return mux
}

// serve serves the handler on an address until the context ends. It retries forever.
func serve(ctx context.Context, address string, handler http.Handler) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := serveOnce(ctx, address, handler); ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to serve metrics, retrying", "address", address, "after", listenRetry)
		}
	}, listenRetry)
}

func serveOnce(ctx context.Context, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Serving metrics", "address", listener.Addr().String())
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    1 << 14,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	return server.Serve(listener)
}
