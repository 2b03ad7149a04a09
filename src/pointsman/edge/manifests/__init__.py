"""Files of clusters and deployments: ours, those of kubectl, those of Dynamo."""
