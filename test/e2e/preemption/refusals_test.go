// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// schedulerConfig writes a changed copy of the configuration of the cluster's scheduler, and
// returns its path.
func schedulerConfig(t *testing.T, change func(config map[string]any)) string {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join(cluster.Dir(), "scheduler.yaml")))(t)
	var config map[string]any
	must.Do(t, yaml.Unmarshal(content, &config))
	change(config)
	content = must.Get(yaml.Marshal(config))(t)
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	must.Do(t, os.WriteFile(path, content, 0o600))
	return path
}

// profile returns the only profile of a configuration.
func profile(config map[string]any) map[string]any {
	return config["profiles"].([]any)[0].(map[string]any)
}

func setArgs(args map[string]any) func(map[string]any) {
	return func(config map[string]any) {
		profile(config)["pluginConfig"] = []any{map[string]any{"name": "HauloutPreemption", "args": args}}
	}
}

// wantRefusal starts haulout-scheduler and checks that it ends with an error that contains all of
// the texts.
func wantRefusal(t *testing.T, config string, texts ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(cluster.Root(), "bin", "haulout-scheduler"),
		"--config="+config, "--secure-port=0")
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	must.Do(t, command.Start())
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	ctx, cancel := deadline(t)
	defer cancel()
	select {
	case err := <-ended:
		is.True(t, err != nil, "haulout-scheduler ended without an error")
	case <-ctx.Done():
		_ = command.Process.Kill()
		t.Errorf("haulout-scheduler still ran after %v, and was killed: %v", framework.Timeout, <-ended)
	}
	// The log contains the error with escaped quotation marks.
	said := strings.ReplaceAll(output.String(), `\"`, `"`)
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("got no %q in the output of haulout-scheduler:\n%s", text, output.String())
		}
	}
}

// TestBadConfigurationEndsTheScheduler starts haulout-scheduler with configurations that would
// protect no pods, or other pods than intended.
func TestBadConfigurationEndsTheScheduler(t *testing.T) {
	for name, test := range map[string]struct {
		change func(config map[string]any)
		want   []string
	}{
		"both plugins are enabled": {
			change: func(config map[string]any) {
				profile(config)["plugins"] = map[string]any{
					"multiPoint": map[string]any{"enabled": []any{map[string]any{"name": "HauloutPreemption"}}},
				}
			},
			want: []string{`profile "default-scheduler" enables both DefaultPreemption and HauloutPreemption`},
		},
		"an argument is misspelt": {
			change: setArgs(map[string]any{"allowDisruptionByPriority": 5}),
			want:   []string{"args of HauloutPreemption", `unknown field "allowDisruptionByPriority"`},
		},
		"the threshold is above that of system-critical pods": {
			change: setArgs(map[string]any{"allowDisruptionByPriorityGreaterThanOrEqual": 2000000001}),
			want:   []string{"args of HauloutPreemption", "from -2147483648 to 2000000000, got 2000000001"},
		},
		"an argument of DefaultPreemption is out of range": {
			change: setArgs(map[string]any{"minCandidateNodesPercentage": 101}),
			want:   []string{"args of HauloutPreemption", "minCandidateNodesPercentage"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, schedulerConfig(t, test.change), test.want...)
		})
	}
}

// kubeconfig writes a kubeconfig with the token of a client.
func kubeconfig(t *testing.T, clients framework.Clients) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{
		Server:                   clients.Config.Host,
		CertificateAuthority:     clients.Config.CAFile,
		CertificateAuthorityData: clients.Config.CAData,
	}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{Token: clients.Config.BearerToken}
	config.Contexts["context"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "user"}
	config.CurrentContext = "context"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, path))
	return path
}

// TestMissingRightsEndTheScheduler starts haulout-scheduler with the permissions of kube-scheduler,
// and then with one of the two additional permissions that the plugin needs.
func TestMissingRightsEndTheScheduler(t *testing.T) {
	namespace := cluster.NewNamespace(t)
	account := cluster.ServiceAccount(t, namespace, "scheduler")
	user := fmt.Sprintf("system:serviceaccount:%s:scheduler", namespace)
	cluster.Bind(t, user, "system:kube-scheduler")
	config := schedulerConfig(t, func(config map[string]any) {
		config["clientConnection"].(map[string]any)["kubeconfig"] = kubeconfig(t, account)
	})
	wantRefusal(t, config, "HauloutPreemption cannot read PriorityClasses", "the ClusterRole haulout-scheduler grants this right")
	cluster.Grant(t, user, rbacv1.PolicyRule{
		APIGroups: []string{"scheduling.k8s.io"}, Resources: []string{"priorityclasses"}, Verbs: []string{"list", "get", "watch"},
	})
	wantRefusal(t, config, "HauloutPreemption may not create pods/eviction", "the ClusterRole haulout-scheduler grants this right")
}
