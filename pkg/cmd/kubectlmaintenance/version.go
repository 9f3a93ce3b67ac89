// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/version"
)

func (e *environment) newVersionCommand() *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the plugin and of the server",
		Long: `Print the versions of this plugin and of the Haulout server in the cluster. The server's version is in the OpenAPI
document of its API (kubectl get --raw /openapi/v3/apis/maintenance.haulout.dev/v1alpha1), which every authenticated
user may read.`,
		Example: `  kubectl maintenance version`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.version(cmd.Context(), clientOnly)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "Print only the version of the plugin; needs no cluster.")
	return cmd
}

func (e *environment) version(ctx context.Context, clientOnly bool) error {
	s := e.screen(e.Out)
	s.Printf("Plugin: %s", version.Get())
	if clientOnly {
		return nil
	}
	c, err := e.connect()
	if err != nil {
		return err
	}
	server, err := serverVersion(ctx, c)
	if err != nil {
		return err
	}
	s.Printf("Server: %s", server)
	return nil
}

// serverVersion returns the version in the OpenAPI document of Haulout's API. The API server of the
// cluster passes on this document, but not the path /version of an aggregated server.
func serverVersion(ctx context.Context, c clients) (string, error) {
	path := "apis/" + v1alpha1.SchemeGroupVersion.String()
	documents, err := c.openAPI.PathsWithContext(ctx)
	if err != nil {
		return "", err
	}
	document, ok := documents[path]
	if !ok {
		return "", fmt.Errorf("this cluster does not serve %s: Haulout is not installed, or its API is not registered or not available "+
			"(kubectl get apiservice %s.%s)", v1alpha1.SchemeGroupVersion, v1alpha1.SchemeGroupVersion.Version, v1alpha1.GroupName)
	}
	content, err := document.SchemaWithContext(ctx, runtime.ContentTypeJSON)
	if err != nil {
		return "", err
	}
	var schema struct {
		Info struct {
			Version string `json:"version"`
		} `json:"info"`
	}
	if err := json.Unmarshal(content, &schema); err != nil {
		return "", fmt.Errorf("parse /openapi/v3/%s: %w", path, err)
	}
	if schema.Info.Version == "" {
		return "", errors.New("the OpenAPI document of the server has no version")
	}
	return schema.Info.Version, nil
}
