# Functions and machines have no way to the internet unless var.internet opens one, and nothing leads in: what they ask of
# AWS goes through endpoints.
locals {
  zones = { for i, zone in var.zones : zone => i }
}

resource "aws_vpc" "cell" {
  cidr_block           = var.network
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = { Name = var.name }
}

resource "aws_subnet" "private" {
  for_each          = local.zones
  vpc_id            = aws_vpc.cell.id
  availability_zone = each.key
  cidr_block        = cidrsubnet(var.network, 4, each.value)
  tags              = { Name = "${var.name}-${each.key}" }
}

# CloudFront reaches a load balancer in a private network only where the VPC has one of these. Only a NAT gateway uses it.
resource "aws_internet_gateway" "front" {
  vpc_id = aws_vpc.cell.id
  tags   = { Name = "${var.name}-required-by-cloudfront" }
}

resource "aws_route_table" "private" {
  vpc_id = aws_vpc.cell.id
  tags   = { Name = var.name }
}

resource "aws_route_table_association" "private" {
  for_each       = aws_subnet.private
  subnet_id      = each.value.id
  route_table_id = aws_route_table.private.id
}

# One gateway that is in every zone which has traffic.
resource "aws_nat_gateway" "internet" {
  for_each          = toset(var.internet ? ["internet"] : [])
  availability_mode = "regional"
  vpc_id            = aws_vpc.cell.id
  tags              = { Name = "${var.name}-${each.key}" }
  depends_on        = [aws_internet_gateway.front]
}

resource "aws_route" "internet" {
  for_each               = aws_nat_gateway.internet
  route_table_id         = aws_route_table.private.id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = each.value.id
}

# Buckets, without a charge for traffic: only those of this account, and that of Amazon Linux's packages.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.cell.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.private.id]
  policy            = data.aws_iam_policy_document.s3_endpoint.json
}

data "aws_iam_policy_document" "s3_endpoint" {
  statement {
    actions   = ["s3:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["*"]
    }
    condition {
      test     = "StringEquals"
      variable = "s3:ResourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
  statement {
    actions   = ["s3:GetObject"]
    resources = ["arn:${data.aws_partition.current.partition}:s3:::al2023-repos-${var.region}-*/*"]
    principals {
      type        = "AWS"
      identifiers = ["*"]
    }
  }
}

# Processes read their secret when they start, and machines write their logs and ring the doorbell: in every zone that has
# a server of the log, so that the loss of a zone stops nothing in the others. With a NAT gateway they are not needed.
resource "aws_vpc_endpoint" "service" {
  for_each            = toset(var.internet ? [] : ["secretsmanager", "logs", "sqs"])
  vpc_id              = aws_vpc.cell.id
  service_name        = "com.amazonaws.${var.region}.${each.key}"
  vpc_endpoint_type   = "Interface"
  private_dns_enabled = true
  subnet_ids          = [for zone in local.log_zones : aws_subnet.private[zone].id]
  security_group_ids  = [aws_security_group.endpoints.id]
}

resource "aws_security_group" "endpoints" {
  name        = "${var.name}-endpoints"
  description = "Endpoints of AWS services"
  vpc_id      = aws_vpc.cell.id
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  security_group_id = aws_security_group.endpoints.id
  description       = "HTTPS from the VPC"
  cidr_ipv4         = var.network
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

# Operators reach machines by 'aws ec2-instance-connect ssh', which costs nothing. A VPC has one such endpoint at most.
resource "aws_ec2_instance_connect_endpoint" "operators" {
  subnet_id          = aws_subnet.private[var.zones[0]].id
  security_group_ids = [aws_security_group.operators.id]
  preserve_client_ip = false
}

resource "aws_security_group" "operators" {
  name        = "${var.name}-operators"
  description = "Operators who log in to machines"
  vpc_id      = aws_vpc.cell.id
}

resource "aws_vpc_security_group_egress_rule" "operators" {
  security_group_id = aws_security_group.operators.id
  description       = "SSH to the machines"
  cidr_ipv4         = var.network
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
}

resource "aws_vpc_security_group_ingress_rule" "operators" {
  for_each                     = { log = aws_security_group.log.id, watcher = aws_security_group.watcher.id }
  security_group_id            = each.value
  description                  = "Operators"
  referenced_security_group_id = aws_security_group.operators.id
  ip_protocol                  = "tcp"
  from_port                    = 22
  to_port                      = 22
}

# Whoever is a member of this group may speak to the log.
resource "aws_security_group" "clients" {
  name        = "${var.name}-clients"
  description = "Functions and machines of Logplane"
  vpc_id      = aws_vpc.cell.id
}

resource "aws_vpc_security_group_egress_rule" "clients" {
  for_each          = { log = 4222, https = 443 }
  security_group_id = aws_security_group.clients.id
  description       = "To the ${each.key}"
  cidr_ipv4         = each.key == "log" ? var.network : "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = each.value
  to_port           = each.value
}
